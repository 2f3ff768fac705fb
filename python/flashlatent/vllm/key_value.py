"""Keys and values apart (MHA, GQA, MQA) in vLLM: decode, prefill and their mixture, one call a layer.

The cache is vLLM's (pages, KV heads, page_size, key | value), read by its strides, in NHD and in HND order.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, List, Optional, Tuple

import torch
from vllm.v1.attention.backend import (AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata,
                                       AttentionMetadataBuilder)

from flashlatent import Step, append_kv

from . import _refusals
from ._backend import Backend, HintedBuilder, calls_per_plan


class FlashLatentKeyValueBackend(Backend, AttentionBackend):
    supported_kv_cache_dtypes: ClassVar[List[Any]] = ["auto", "bfloat16", "float16", "fp8", "fp8_e4m3"]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_impl_cls() -> type:
        return FlashLatentKeyValueImpl

    @staticmethod
    def get_builder_cls() -> type:
        return FlashLatentKeyValueMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int,
                           cache_dtype_str: str = "auto") -> Tuple[int, ...]:
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> Tuple[int, ...]:
        from vllm.v1.attention.backends.utils import get_kv_cache_layout

        heads_first = get_kv_cache_layout() == "HND"
        if include_num_layers_dimension:
            return (1, 2, 0, 3, 4) if heads_first else (1, 0, 3, 2, 4)
        return (0, 1, 2, 3) if heads_first else (0, 2, 1, 3)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 16 == 0 and 0 < head_size <= 256

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """A batch with a prompt takes another kernel than a batch without."""
        return False

    @classmethod
    def supports_combination(cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Optional[str],
                             block_size: Optional[int], use_mla: bool, has_sink: bool, use_sparse: bool,
                             use_mm_prefix: bool, device_capability: Any) -> Optional[str]:
        sentences = _refusals.common(block_size, device_capability)
        if not cls.supports_head_size(head_size):
            sentences.append(f"head_size is {head_size}; a multiple of 16 up to 256 is expected")
        if not cls.supports_kv_cache_dtype(kv_cache_dtype):
            sentences.append(f"kv_cache_dtype is {kv_cache_dtype}; {', '.join(cls.supported_kv_cache_dtypes)} are "
                             "expected")
        return _refusals.joined(sentences)


@dataclass
class FlashLatentKeyValueMetadata(AttentionMetadata):
    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    rows: int  # rows rows of the query that belong to a request
    typical_tokens: int
    step: Step


class FlashLatentKeyValueMetadataBuilder(HintedBuilder, AttentionMetadataBuilder):
    """Graphs are for batches whose requests all have the same number of query tokens: a graph captured for a mixture
    with prompts would launch for the longest prompt each time."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: List[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    def build(self, common_prefix_len: int, common_attn_metadata: Any,
              fast_build: bool = False) -> FlashLatentKeyValueMetadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise NotImplementedError("flashlatent: causal is not True; causal attention alone is expected")
        return FlashLatentKeyValueMetadata(
            num_actual_tokens=common.num_actual_tokens, max_query_len=max(common.max_query_len, 1),
            query_start_loc=common.query_start_loc, seq_lens=common.seq_lens, block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping, rows=int(common.query_start_loc_cpu[-1]),
            typical_tokens=self.typical_tokens(common),
            step=Step(calls_per_plan=calls_per_plan(self.layer_names, fast_build)))


class FlashLatentKeyValueImpl(AttentionImpl):
    supports_dcp: bool = False  # query heads of all ranks would have to be gathered, and merged by lse
    supports_pcp: bool = False

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: Optional[int] = None,
                 alibi_slopes: Optional[List[float]] = None, sliding_window: Optional[int] = None,
                 kv_cache_dtype: str = "auto", logits_soft_cap: Optional[float] = None, attn_type: str = "decoder",
                 kv_sharing_target_layer_name: Optional[str] = None, sinks: Optional[torch.Tensor] = None) -> None:
        _refusals.refuse_attn_type("flashlatent", attn_type)
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.supports_quant_query_input = False
        self._slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self._sinks = sinks
        self._options = dict(softmax_scale=self.scale, window=sliding_window or 0, soft_cap=logits_soft_cap or 0.0)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        if self._sinks is not None:
            self._sinks = self._sinks.detach().float()

    def _cache(self, kv_cache: torch.Tensor, layer: Any) -> Tuple[Any, ...]:
        """(keys, values, key_scale, value_scale), (pages, page_size, KV heads, head_size) each."""
        if kv_cache.element_size() == 1:
            kv_cache = kv_cache.view(torch.uint8)
        keys, values = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        if kv_cache.element_size() == 1:
            return keys, values, layer._k_scale.reshape(1), layer._v_scale.reshape(1)
        return keys, values, None, None

    def do_kv_cache_update(self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                           slot_mapping: torch.Tensor) -> None:
        if kv_cache.numel():
            tokens = slot_mapping.shape[0]  # key and value may be padded for graphs
            append_kv(key[:tokens], value[:tokens], slot_mapping, self._cache(kv_cache, layer))

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: Any, output: torch.Tensor, output_scale: Optional[torch.Tensor] = None,
                output_block_scale: Optional[torch.Tensor] = None) -> torch.Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("flashlatent: output_scale is given; attention writes bf16 and fp16 alone")
        if attn_metadata is None:  # memory is measured
            return output.fill_(0)
        if self._slopes is not None and self._slopes.device != query.device:
            self._slopes = self._slopes.to(query.device)
        keys, values, key_scale, value_scale = self._cache(kv_cache, layer)
        rows = attn_metadata.rows
        out = output.view(-1, self.num_heads, self.head_size)
        out[rows:attn_metadata.num_actual_tokens].zero_()
        attn_metadata.step.decode_kv(
            query[:rows].view(-1, self.num_heads, self.head_size), keys, values, attn_metadata.block_table,
            attn_metadata.seq_lens, causal=True, cu_seqlens_q=attn_metadata.query_start_loc,
            tokens=attn_metadata.max_query_len, alibi_slopes=self._slopes, attn_sink=self._sinks, key_scale=key_scale,
            value_scale=value_scale, out=out[:rows], typical_tokens=attn_metadata.typical_tokens, **self._options)
        return output
