"""The edges of DeepSeek V4's and V4.1's layers in vLLM, where the user asks for them: queries are normalised and
rotated, window tokens rotated, quantised and stored, outputs rotated back and cast to e4m3.

vLLM has its own kernels for these: one for queries and window tokens together, one for outputs. Here the
edges of decode are options of the attention, whose kernels have them in their own passes where they can. The edges of
prompts are launches of their own, in place where they can be. As options of sparse_prefill() they would be launches, too,
and take memory for a second query and output.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch

import flashlatent
from flashlatent import _native

from .._sparse import Chosen, prefill
from ._records import format_of
from ._v4_layer import step_metadata

_COLUMNS = 128  # columns with one scale, as vLLM's product on Hopper takes outputs


class _Edges(NamedTuple):
    """The edges of one call of forward_mqa(), for _attend(), to which vLLM's code does not pass them."""

    rotation: flashlatent.Rotation  # of all rows
    fp8: Optional[Tuple[torch.Tensor, torch.Tensor]]  # (codes, scales), if decode has all rows of the step


class V4Edges:
    """The first of the bases of a layer's class."""

    normalises_queries = True  # normalises each head; V4.1 normalises before the projection

    def _fused_qnorm_rope_kv_insert(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor,
                                    attn_metadata: Any) -> torch.Tensor:
        """Stores window tokens. Queries stay as they are, without padding, until attention."""
        if not isinstance(attn_metadata, dict):  # memory is measured
            return q
        layer: Any = self
        cache = layer.swa_cache_layer.kv_cache
        slots = attn_metadata[layer.swa_cache_layer.prefix].slot_mapping
        rows = slots.shape[0]  # those behind are padding
        flashlatent.append_latent(kv[:rows], None, slots, cache.unsqueeze(-2), positions=positions[:rows],
                                  table=layer.rotary_emb.cos_sin_cache, **format_of(cache))
        return q

    def _alloc_attn_out(self, num_tokens: int, hidden_states: torch.Tensor) -> Any:
        """Of vLLM 0.33: the FP8 output of all rows, which forward_mqa() fills, if the projection takes one."""
        layer: Any = self
        if layer.wo_a.weight.dtype != torch.float8_e4m3fn:
            return super()._alloc_attn_out(num_tokens, hidden_states)  # type: ignore[misc]
        from vllm.model_executor.layers.fusion.quant_activation import QuantizedActivation
        from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8Dynamic128Sym

        shape = num_tokens, layer.n_local_heads, layer.head_dim
        codes, scales = flashlatent.empty_fp8_output(
            hidden_states, tokens=num_tokens, heads=layer.n_local_heads, v_dim=layer.head_dim,
            groups=layer.n_local_groups, scale_columns=_COLUMNS)
        # As it is in memory, group by group: vLLM's graphs keep weak references to contiguous tensors.
        return QuantizedActivation(codes.transpose(0, 1), scales, hidden_states.dtype, torch.Size(shape),
                                   kFp8Dynamic128Sym)

    def forward_mqa(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, output: Any) -> None:
        layer: Any = self
        rotation = flashlatent.Rotation(positions, layer.rotary_emb.cos_sin_cache)
        if isinstance(output, torch.Tensor):
            self._forward(q, kv, positions, output[:, :layer.n_local_heads], _Edges(rotation, None))
            return
        fp8 = output.data.transpose(0, 1), output.scale
        metadata = step_metadata()
        if metadata is None:  # memory is measured
            for part in fp8:
                part.zero_()
            return
        step = metadata[layer.swa_cache_layer.prefix]
        if step.num_decode_tokens == len(q):
            # vLLM's code slices an output; nothing is written to this one.
            self._forward(q, kv, positions, torch.empty_like(q, device="meta"), _Edges(rotation, fp8))
            return
        # One call writes all scales, so a step with prompts or padding is cast as a whole.
        out = torch.empty_like(q)
        self._forward(q, kv, positions, out, _Edges(rotation, None))
        _native.finish_outputs_into(out, positions=positions, table=rotation.table, codes=fp8[0], scales=fp8[1])

    def _forward(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, out: torch.Tensor,
                 edges: _Edges) -> None:
        """vLLM's, which divides rows between decode and prompts."""
        self._edges = edges
        try:
            super().forward_mqa(q, kv, positions, out)  # type: ignore[misc]
        finally:
            del self._edges  # its tensors may be of a graph's pool

    def _attend(self, way: Any, q: torch.Tensor, extra: Optional[torch.Tensor], swa_metadata: Any, chosen: Chosen,
                out: Optional[torch.Tensor], **options: Any) -> None:
        layer: Any = self
        whole, fp8 = self._edges
        first = swa_metadata.num_decode_tokens if way is prefill else 0
        rotation = whole._replace(positions=whole.positions[first:first + len(q)])
        norm = layer.eps if self.normalises_queries else 0.0
        if way is prefill:
            flashlatent.prepare_queries(q, norm=norm, positions=rotation.positions, table=rotation.table, out=q)
        else:
            options.update(q_norm=norm, q_rotate=rotation)
        if fp8 is not None:
            out = None
            options.update(out_rotate=rotation, out_fp8=fp8)
        super()._attend(way, q, extra, swa_metadata, chosen, out, **options)  # type: ignore[misc]

    def _o_proj(self, attn_out: Any, positions: torch.Tensor) -> torch.Tensor:
        layer: Any = self
        wo_a = layer.wo_a
        if isinstance(attn_out, torch.Tensor):
            if wo_a.weight.dtype != torch.float8_e4m3fn:
                return super()._o_proj(attn_out, positions)  # type: ignore[misc]
            codes, scales = flashlatent.finish_outputs(  # vLLM 0.26
                attn_out[:, :layer.n_local_heads], positions=positions, table=layer.rotary_emb.cos_sin_cache,
                scale_columns=_COLUMNS, groups=layer.n_local_groups)
            dtype = attn_out.dtype
        else:
            codes, scales, dtype = attn_out.data.transpose(0, 1), attn_out.scale, attn_out.orig_dtype
        from vllm.utils.deep_gemm import fp8_einsum

        projected = codes.new_empty(len(codes), layer.n_local_groups, layer.o_lora_rank, dtype=dtype)
        weight_scale = wo_a.weight_scale if hasattr(wo_a, "weight_scale") else wo_a.weight_scale_inv
        fp8_einsum("bhr,hdr->bhd",
                   (codes.view(torch.float8_e4m3fn), scales.permute(2, 0, 1)[:len(codes)]),
                   (wo_a.weight, weight_scale), projected, recipe=layer._einsum_recipe)
        project = getattr(layer, "_wo_b_proj", layer.wo_b)  # V4.1's may reduce over ranks, too
        return project(projected.flatten(1))
