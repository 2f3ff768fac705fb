"""The modules of an enabled model. Their classes derive from the model's own classes and have the same names: the base
model makes a Step for each pass, attention uses it."""

import torch
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

from .._errors import InvalidArgumentError
from ._batching import LatentPagedCache, paged_step
from ._cache import LatentCache


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
            raise InvalidArgumentError(f"attention_dropout is {self.attention_dropout} and the model is in training "
                                       "mode; call model.eval()")
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
        return self.o_proj(out.view(batch, tokens, out.shape[1])), None


class _LatentModel:
    """Mixed into a base model's class: a pass with a cache of ours has a Step, for all its layers."""

    def forward(self, input_ids=None, **options):
        cache, paged = options.get("past_key_values"), options.get("cache")
        if isinstance(paged, LatentPagedCache):
            options["latent_step"] = paged_step(paged, options)
        elif isinstance(cache, LatentCache):
            options |= self._begin(cache, input_ids, options)
        return super().forward(input_ids, **options)

    def _begin(self, cache, input_ids, options):
        inputs = input_ids if input_ids is not None else options.get("inputs_embeds")
        if inputs is None:
            return {}  # the model says what is missing
        positions = options.get("position_ids")
        if positions is None:
            past = cache.get_seq_length()
            positions = torch.arange(past, past + inputs.shape[1], device=inputs.device)[None]
        step = cache.begin(inputs, options.get("attention_mask"), input_ids, positions)
        # A mask of four dimensions is passed on as it is: none is made, and attention has the Step.
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=inputs.device)
        return {"latent_step": step, "position_ids": positions, "attention_mask": mask, "use_cache": True}


class _RotateV2:

    def rotate(self, query, key, angles):
        return v2.apply_rotary_emb(query, key, angles.to(query.device))


class _RotateV3:

    def rotate(self, query, key, cos_and_sin):
        apply = v3.apply_rotary_pos_emb_interleave if self.config.rope_interleave else v3.apply_rotary_pos_emb
        return apply(query, key, *cos_and_sin)


# The class that an enabled module has in place of its own. Only exactly these classes: one that derives from them may
# compute something else. Configurations are saved with class names, so names stay.
ATTENTION = {v2.DeepseekV2Attention: (_RotateV2, _LatentAttention),
             v3.DeepseekV3Attention: (_RotateV3, _LatentAttention)}
MODELS = {v2.DeepseekV2Model: (_LatentModel,), v3.DeepseekV3Model: (_LatentModel,)}
LATENT_CLASSES = {stock: type(stock.__name__, (*mixed_in, stock), {"__module__": __name__})
                  for stock, mixed_in in (ATTENTION | MODELS).items()}
STOCK_CLASSES = {latent: stock for stock, latent in LATENT_CLASSES.items()}
