"""The attention modules of an enabled model: projections are the model's own, attention is a Step's."""

import torch
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

from .._errors import InvalidArgumentError


class _LatentAttention:
    """Mixed into an attention class: forward() over a paged latent cache, if the pass has one."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None,
                latent_step=None, **options):
        if latent_step is None:
            return super().forward(hidden_states=hidden_states, position_embeddings=position_embeddings,
                                   attention_mask=attention_mask, past_key_values=past_key_values, **options)
        if torch.is_grad_enabled() and hidden_states.requires_grad:
            raise InvalidArgumentError("gradients are enabled, and there are none through the latent cache; call the "
                                       "model in torch.no_grad(), or without past_key_values")
        if self.training and self.attention_dropout:
            raise InvalidArgumentError(f"attention_dropout is {self.attention_dropout} and the model is in training mode; "
                                       "call model.eval()")
        batch, tokens = hidden_states.shape[:2]
        query = self.q_proj(hidden_states) if self.q_lora_rank is None else self.q_b_proj(
            self.q_a_layernorm(self.q_a_proj(hidden_states)))
        query_nope, query_rope = query.unflatten(-1, (-1, self.qk_head_dim)).split(
            [self.qk_nope_head_dim, self.qk_rope_head_dim], -1)
        latent, rope = self.kv_a_proj_with_mqa(hidden_states).split([self.kv_lora_rank, self.qk_rope_head_dim], -1)
        latent = self.kv_a_layernorm(latent)
        query_rope, rope = self.rotate(query_rope.transpose(1, 2), rope[:, None], position_embeddings)

        packed = [query_nope, query_rope.transpose(1, 2), latent, rope[:, 0]]
        packed = [x.flatten(0, 1) for x in packed]
        if latent_step.chosen is not None:
            packed = [x[latent_step.chosen] for x in packed]
        out = latent_step.attend(self, *packed).flatten(1)
        if latent_step.chosen is not None:
            every = out.new_zeros(batch * tokens, out.shape[1])
            every[latent_step.chosen] = out
            out = every
        return self.o_proj(out.view(batch, tokens, -1)), None


class LatentDeepseekV2Attention(_LatentAttention, v2.DeepseekV2Attention):

    def rotate(self, query, key, angles):
        return v2.apply_rotary_emb(query, key, angles.to(query.device))


class LatentDeepseekV3Attention(_LatentAttention, v3.DeepseekV3Attention):

    def rotate(self, query, key, cos_and_sin):
        apply = v3.apply_rotary_pos_emb_interleave if self.config.rope_interleave else v3.apply_rotary_pos_emb
        return apply(query, key, *cos_and_sin)


# The class that an enabled module has in place of its own. Exactly these: a class that derives from one of them may
# compute something else.
LATENT_CLASSES = {v2.DeepseekV2Attention: LatentDeepseekV2Attention, v3.DeepseekV3Attention: LatentDeepseekV3Attention}
