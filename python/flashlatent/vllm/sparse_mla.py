"""Sparse MLA in vLLM (DeepSeek V3.2, GLM-5): each query token attends to the tokens that its indexer chose.

Any number of heads goes to the kernels without padding. Prompts longer than the indexer's topk go to sparse_prefill(),
straight from the paged cache; shorter prompts take vLLM's dense prefill.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, List, Optional, Tuple, Union

import torch
from vllm.model_executor.layers.attention import sparse_mla_attention as common
from vllm.model_executor.layers.attention.mla_attention import MLACommonPrefillMetadata
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionMetadata

from flashlatent import Step

from .._sparse import Chosen, decode, prefill
from . import _refusals
from ._backend import LatentBackend
from ._slots import chosen_slots

Query = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
Result = Tuple[torch.Tensor, Optional[torch.Tensor]]


class FlashLatentSparseMLABackend(LatentBackend, AttentionBackend):
    head_sizes: ClassVar[List[int]] = [576]
    fp8: ClassVar[List[Any]] = ["fp8_ds_mla"]
    supported_kv_cache_dtypes: ClassVar[List[Any]] = [*LatentBackend.plain, *fp8]

    @staticmethod
    def get_impl_cls() -> type:
        return FlashLatentSparseMLAImpl

    @staticmethod
    def get_builder_cls() -> type:
        return FlashLatentSparseMLAMetadataBuilder

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """vLLM 0.33: indices count rows through the whole cache, so the page stride must be a number of whole rows."""
        return dataclasses.replace(spec, block_stride_alignment=spec.state_content_size_bytes)

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """Whether a prompt takes vLLM's dense prefill depends on its batch-mates' lengths."""
        return False


@dataclass
class _OwnMetadata(AttentionMetadata):
    """What vLLM 0.26's builder fills; later versions bring a class."""

    num_reqs: int
    max_query_len: int
    max_seq_len: int
    num_actual_tokens: int
    query_start_loc: torch.Tensor
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    req_id_per_token: torch.Tensor
    seq_lens: torch.Tensor
    block_size: int = 64
    topk_tokens: int = 2048
    num_decodes: int = 0
    num_prefills: int = 0
    num_decode_tokens: int = 0
    prefill_max_seq_len: int = 0
    prefill: Optional[MLACommonPrefillMetadata] = None
    cp_kv_cache_interleave_size: int = 1


@dataclass(kw_only=True)
class FlashLatentSparseMLAMetadata(getattr(common, "SparseMLACommonMetadata", _OwnMetadata)):  # type: ignore[misc]
    step: Step = dataclasses.field(default_factory=Step)


class FlashLatentSparseMLAMetadataBuilder(common.SparseMLACommonMetadataBuilder):
    metadata_cls = FlashLatentSparseMLAMetadata
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: List[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)


# 0.33 turns the indexer's choice into rows of the cache by itself and calls _forward_mqa_kernel().
_VLLM_FINDS_ROWS = hasattr(common.SparseMLACommonImpl, "_forward_mqa_kernel")


class FlashLatentSparseMLAImpl(common.SparseMLACommonImpl):
    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    lse_base_on_e: bool = True

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int,
                 alibi_slopes: Optional[List[float]], sliding_window: Optional[int], kv_cache_dtype: str,
                 logits_soft_cap: Optional[float], attn_type: str, kv_sharing_target_layer_name: Optional[str],
                 **mla_args: Any) -> None:
        super().__init__(num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
                         logits_soft_cap, attn_type, kv_sharing_target_layer_name, **mla_args)
        _refusals.refuse("sparse MLA", alibi_slopes=alibi_slopes, sliding_window=sliding_window,
                         logits_soft_cap=logits_soft_cap)
        _refusals.refuse_attn_type("sparse MLA", attn_type)
        if self.topk_indices_buffer is None:
            raise NotImplementedError("flashlatent: indexer and topk_indices_buffer are None; one of them is expected, "
                                      "for it has the tokens that queries attend to")
        self.supports_quant_query_input = False
        self._step: Optional[Step] = None
        self._rows = self._decodes = 0

    def forward_mqa(self, q: Query, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, layer: Any) -> Result:
        rows = q[0].shape[0] if isinstance(q, tuple) else q.shape[0]
        self._step, self._rows, self._decodes = attn_metadata.step, rows, min(attn_metadata.num_decode_tokens, rows)
        if _VLLM_FINDS_ROWS and q[0].device.type != "cpu":
            return super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
        slots, counts = chosen_slots(self, attn_metadata, rows)
        return self._attend(q, kv_c_and_k_pe_cache.unsqueeze(2), slots, counts, self._decodes)

    def _forward_mqa_kernel(self, q: Query, kv_cache: torch.Tensor, topk_indices: torch.Tensor,
                            valid_counts: torch.Tensor, *, layer: Any, block_size: int, is_decode: bool) -> Result:
        pages, page_size, dim = kv_cache.shape
        if kv_cache.stride(0) != page_size * dim:  # other layers' pages lie between: rows are counted through them
            rows = (pages - 1) * (kv_cache.stride(0) // dim) + page_size
            kv_cache = kv_cache.as_strided((rows, 1, dim), (dim, dim, 1))
        rows = topk_indices.shape[0]
        # Called with all rows, or separately with decode's and with prompts' rows.
        decodes = rows if is_decode else self._decodes if rows == self._rows else 0
        return self._attend(q, kv_cache.unsqueeze(2), topk_indices, valid_counts, decodes)

    def _attend(self, q: Query, kv_cache: torch.Tensor, slots: torch.Tensor, counts: torch.Tensor,
                decodes: int) -> Result:
        """The first `decodes` rows are decode's, the others are of prompts."""
        q, q_rope = q if isinstance(q, tuple) else (q, None)
        # The indices of a rank's tokens may have gaps; -1 is skipped at any place.
        chosen = Chosen(slots, counts if self.dcp_world_size <= 1 else None)
        assert self._step is not None
        out = q.new_empty(*q.shape[:2], self.kv_lora_rank)
        lses = []
        for attend, start, stop in ((decode, 0, decodes), (prefill, decodes, q.shape[0])):
            if start < stop:
                lses.append(attend(self._step, q[start:stop], kv_cache, chosen.rows(start, stop), out[start:stop],
                                   q_rope=None if q_rope is None else q_rope[start:stop], softmax_scale=self.scale))
        if not self.need_to_return_lse_for_decode:
            return out, None
        return out, lses[0] if len(lses) == 1 else torch.cat(lses)
