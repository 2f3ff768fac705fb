"""The indexer: top-k of its scores, the merge of ranks' results, and writing of index keys."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from .. import _native
from .._torch_call import call
from ._edges import ROTATE, TOKEN_EDGES
from ._library import define, nothing

_INDEX_TOPK = ("Tensor q, Tensor weights, Tensor index_cache, Tensor block_table, Tensor cache_seqlens, *, int topk, "
               "str index_format='fp8_132', int? page_size=None, bool causal=False, Tensor? q_scale=None, "
               "Tensor? cu_seqlens_q=None, Tensor? candidates=None, int candidate_block=8, int best_blocks=0, "
               "Tensor? slot_table=None, int slot_page_size=0")


def _index_topk(*tensors, **options):
    return tuple(tensors[0].new_empty(0, dtype=dtype) if result is None else result
                 for result, dtype in zip(_native.index_topk(*tensors, **options),
                                          (torch.int32, torch.int32, torch.float32, torch.int32)))


def _index_topk_fake(q, weights, index_cache, block_table, cache_seqlens, *, topk, best_blocks=0, scores=False,
                     **options):
    tokens = q.shape[:-2]
    return (q.new_empty((*tokens, topk), dtype=torch.int32), q.new_empty(tokens, dtype=torch.int32),
            q.new_empty((*tokens, topk) if scores else 0, dtype=torch.float32),
            q.new_empty((*tokens, best_blocks) if best_blocks > 0 else 0, dtype=torch.int32))


def _index_topk_out(*tensors, **options):
    _native.index_topk(*tensors, **options)


def _merge_topk(scores, counts, indices, rank):
    return _native.merge_topk(scores, counts, indices, rank=rank)


def _merge_topk_fake(scores, counts, indices, rank):
    return indices.new_empty(indices.shape), indices.new_empty(indices.shape[:2])


def _append_index_keys(keys, slot_mapping, index_cache, index_format="fp8_132", page_size=None, **edges):
    _native.append_index_keys(keys, slot_mapping, index_cache, index_format=index_format, page_size=page_size, **edges)


def _quantize_index_queries(q, weights, **options):
    codes, scales, out_weights = _native.quantize_index_queries(q, weights, **options)
    return codes, q.new_empty(0, dtype=torch.uint8) if scales is None else scales, out_weights


def _quantize_index_queries_fake(q, weights, *, index_format="fp8_132", **options):
    heads, fp8 = q.shape[:-1], index_format == "fp8_132"
    return (q.new_empty((*heads, 128 if fp8 else 64), dtype=torch.uint8),
            q.new_empty(0 if fp8 else (*heads, 4), dtype=torch.uint8), q.new_empty(heads, dtype=torch.float32))


define(f"index_topk({_INDEX_TOPK}, bool scores=False) -> (Tensor, Tensor, Tensor, Tensor)", _index_topk,
       _index_topk_fake)
define(f"index_topk_out({_INDEX_TOPK}, Tensor(a!) out, Tensor(b!) counts) -> ()", _index_topk_out, nothing)
define("merge_topk(Tensor scores, Tensor counts, Tensor indices, int rank) -> (Tensor, Tensor)", _merge_topk,
       _merge_topk_fake)
define("append_index_keys(Tensor keys, Tensor slot_mapping, Tensor(a!) index_cache, str index_format='fp8_132', "
       f"int? page_size=None, *, {TOKEN_EDGES}, str rotary_columns='last') -> ()", _append_index_keys, nothing)
define(f"quantize_index_queries(Tensor q, Tensor weights, *, {ROTATE}, str rotary_columns='last', "
       "str index_format='fp8_132') -> (Tensor, Tensor, Tensor)", _quantize_index_queries, _quantize_index_queries_fake)


def index_topk(q: Tensor, weights: Tensor, index_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, *,
               topk: int, **options) -> Tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
    """The indexer; returns (indices, counts, scores, best_blocks), of which the last two are None unless scores=True and
    best_blocks=n ask for them. Shapes and meaning as in flashlatent.index_topk().

    options  index_format='fp8_132', page_size, causal=False, q_scale, cu_seqlens_q, candidates, candidate_block=8,
             best_blocks=0, slot_table, slot_page_size=0, scores=False
    """
    indices, counts, scores, best = call(torch.ops.flashlatent.index_topk, q, weights, index_cache, block_table,
                                         cache_seqlens, topk=topk, **options)
    return (indices, counts, scores if options.get("scores") else None,
            best if options.get("best_blocks") else None)


def index_topk_out(q: Tensor, weights: Tensor, index_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, *,
                   topk: int, out: Tensor, counts: Tensor, **options) -> None:
    """index_topk() into the caller's tensors: out int32 (batch, s_q, topk), counts int32 (batch, s_q)."""
    call(torch.ops.flashlatent.index_topk_out, q, weights, index_cache, block_table, cache_seqlens, topk=topk,
         out=out, counts=counts, **options)


def merge_topk(scores: Tensor, counts: Tensor, indices: Tensor, rank: int) -> Tuple[Tensor, Tensor]:
    """The best tokens among those that ranks which share a context have chosen; see flashlatent.merge_topk()."""
    return call(torch.ops.flashlatent.merge_topk, scores, counts, indices, rank=rank)


def append_index_keys(keys: Tensor, slot_mapping: Tensor, index_cache: Tensor, index_format: str = "fp8_132",
                      page_size: Optional[int] = None, **edges) -> None:
    """Writes new index keys into a cache, normalised and rotated if `edges` say so; see
    flashlatent.append_index_keys()."""
    call(torch.ops.flashlatent.append_index_keys, keys, slot_mapping, index_cache, index_format, page_size, **edges)


def quantize_index_queries(q: Tensor, weights: Tensor, **options) -> Tuple[Tensor, Optional[Tensor], Tensor]:
    """(codes, scales, weights) of index queries as index_topk() takes them, scales None for e4m3; see
    flashlatent.quantize_index_queries()."""
    codes, scales, out_weights = call(torch.ops.flashlatent.quantize_index_queries, q, weights, **options)
    return codes, None if options.get("index_format", "fp8_132") == "fp8_132" else scales, out_weights
