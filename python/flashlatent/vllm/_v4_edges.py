"""The edges of DeepSeek V4's and V4.1's layers in vLLM, where the user asks for them: queries are normalised and
rotated, window tokens rotated, quantised and stored, outputs rotated back and cast to e4m3.

vLLM has its own kernels for these: one for queries and window tokens together, one for outputs.
"""

from typing import Any

import torch

import flashlatent

from ._records import format_of

_COLUMNS = 128  # columns with one scale, as vLLM's product on Hopper takes outputs


class V4Edges:
    """The first of the bases of a layer's class."""

    normalises_queries = True  # normalises each head; V4.1 normalises before the projection

    def _fused_qnorm_rope_kv_insert(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor,
                                    attn_metadata: Any) -> torch.Tensor:
        """Queries (rows, padded heads, 512), in place where there is no padding; what padding holds is not read."""
        layer: Any = self
        heads = layer.n_local_heads
        out = q if heads == layer.padded_heads else q.new_empty(len(q), layer.padded_heads, q.shape[-1])
        if not isinstance(attn_metadata, dict):  # memory is measured
            return out
        table, cache = layer.rotary_emb.cos_sin_cache, layer.swa_cache_layer.kv_cache
        slots = attn_metadata[layer.swa_cache_layer.prefix].slot_mapping
        rows = slots.shape[0]  # those behind are padding
        flashlatent.append_latent(kv[:rows], None, slots, cache.unsqueeze(-2), positions=positions[:rows], table=table,
                                  **format_of(cache))
        flashlatent.prepare_queries(q, norm=layer.eps if self.normalises_queries else 0.0, positions=positions,
                                    table=table, out=out[:, :heads])
        return out

    def _o_proj(self, attn_out: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        layer: Any = self
        wo_a = layer.wo_a
        if wo_a.weight.dtype != torch.float8_e4m3fn:
            return super()._o_proj(attn_out, positions)  # type: ignore[misc]
        from vllm.utils.deep_gemm import fp8_einsum

        codes, scales = flashlatent.finish_outputs(
            attn_out[:, :layer.n_local_heads], positions=positions, table=layer.rotary_emb.cos_sin_cache,
            scale_columns=_COLUMNS, groups=layer.n_local_groups)
        projected = attn_out.new_empty(len(attn_out), layer.n_local_groups, layer.o_lora_rank)
        weight_scale = wo_a.weight_scale if hasattr(wo_a, "weight_scale") else wo_a.weight_scale_inv
        fp8_einsum("bhr,hdr->bhd",
                   (codes.view(torch.float8_e4m3fn), scales.permute(2, 0, 1)[:len(attn_out)]),
                   (wo_a.weight, weight_scale), projected, recipe=layer._einsum_recipe)
        project = getattr(layer, "_wo_b_proj", layer.wo_b)  # V4.1's may reduce over ranks, too
        return project(projected.flatten(1))
