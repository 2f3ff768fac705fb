"""The edges of the indexers of DeepSeek V4 and V4.1 in vLLM: index queries are rotated and quantised, and V4.1's index
keys normalised, rotated, quantised and stored. V4's keys are made and stored by its compressor in one kernel.
"""

from functools import partial
from typing import Any

import torch

import flashlatent

from ._replaced import replace


def take_over(attention: Any) -> None:
    """attention: vLLM's module of the layer, which calls these functions by name."""
    replace(attention, "fused_indexer_q_rope_quant", lambda theirs: partial(quantize_queries, theirs))
    if hasattr(attention, "indexer_k_norm_rope_store"):  # V4.1
        replace(attention, "indexer_k_norm_rope_store", lambda theirs: store_keys)


def quantize_queries(theirs: Any, positions: torch.Tensor, index_q: torch.Tensor, index_q_cos_sin_cache: torch.Tensor,
                     index_weights: torch.Tensor, index_weights_softmax_scale: float, index_weights_head_scale: float,
                     use_fp4: bool = False, **options: Any) -> Any:
    """In place of fused_indexer_q_rope_quant(). Queries for keys in MXFP4, which vLLM scores on Blackwell alone, are
    vLLM's."""
    heads, dim = index_q.shape[1:]
    if use_fp4 or (index_weights_softmax_scale, index_weights_head_scale) != (dim**-0.5, heads**-0.5):
        return theirs(positions, index_q, index_q_cos_sin_cache, index_weights, index_weights_softmax_scale,
                      index_weights_head_scale, use_fp4=use_fp4, **options)
    codes, _, weights = flashlatent.quantize_index_queries(index_q, index_weights, positions=positions,
                                                           table=index_q_cos_sin_cache)
    return codes.view(torch.float8_e4m3fn), weights


def store_keys(k_pre: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, rms_norm_weight: torch.Tensor,
               rms_norm_eps: float, k_cache: torch.Tensor, kv_slot_mapping: torch.Tensor, compress_ratio: int,
               use_fp4_cache: bool) -> None:
    """In place of indexer_k_norm_rope_store()."""
    rows = kv_slot_mapping.shape[0]
    flashlatent.append_index_keys(
        k_pre[:rows], kv_slot_mapping, k_cache, index_format="mxfp4_68" if use_fp4_cache else "fp8_132",
        norm=rms_norm_eps, norm_weight=rms_norm_weight, positions=positions[:rows], table=cos_sin_cache,
        ratio=compress_ratio)
