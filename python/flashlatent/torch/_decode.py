"""Decode from latent caches, plans for it, and the merge of partial results."""

import math
from typing import Optional, Tuple

import torch
from torch import Tensor

from .. import _edges, _native
from .._native import Problem
from .._torch_call import call
from ._edges import EDGES, fp8_of_fakes, with_edges
from ._kv_cache import extra_format_of, format_of
from ._library import define, nothing
from ._planning import plan_of_fakes, planned, results_of_fakes, step

# Options pass through by name: the schemas say which there are.
_TOKENS = ("Tensor? block_table=None, Tensor? cache_seqlens=None, *, int v_dim=512, bool causal=False, "
           "Tensor? q_rope=None, Tensor? indices=None, Tensor? topk_length=None, Tensor? cu_seqlens_q=None, "
           "SymInt? tokens=None, bool batch_invariant=False, int window=0, Tensor? extra_kv_cache=None, "
           "Tensor? extra_indices=None, Tensor? extra_topk_length=None, Tensor? extra_block_table=None, "
           "Tensor? extra_cache_seqlens=None, "
           "int? page_size=None, int? extra_page_size=None, str products='auto', int[]? shard=None, "
           "int typical_tokens=0, str? kv_format=None, str? scales=None, str? extra_kv_format=None, ")
_DECODE = _TOKENS + ("Tensor? kv_scale=None, Tensor? q_scale=None, float softmax_scale, Tensor? attn_sink=None, "
                     "Tensor? plan=None, bool check_inputs=False")
_CALLS = "int calls_per_plan=0, bool q_edge=False, bool out_edge=False"


def _plan(q, kv_cache, block_table=None, cache_seqlens=None, *, topk_length=None, extra_topk_length=None,
          extra_cache_seqlens=None, **options):
    # No plan depends on softmax_scale or attn_sink.
    problem = Problem.of_arrays(q, kv_cache, block_table, softmax_scale=1.0, **options)
    return planned(problem, q, cache_seqlens if problem.topk is None else topk_length,
                   extra_cache_seqlens if extra_topk_length is None else extra_topk_length,
                   options.get("cu_seqlens_q"))


def _plan_fake(q, kv_cache, block_table=None, cache_seqlens=None, *, indices=None, topk_length=None,
               cu_seqlens_q=None, tokens=None, extra_kv_cache=None, extra_indices=None, extra_topk_length=None,
               extra_block_table=None, extra_cache_seqlens=None, page_size=None, extra_page_size=None,
               kv_format=None, extra_kv_format=None, **options):
    which = ({"batch": block_table.shape[0], "max_pages": block_table.shape[1]} if indices is None else
             {"batch": indices.shape[0], "topk": indices.shape[2]})
    if extra_kv_cache is not None:
        which["extra_page_size"] = extra_kv_cache.shape[1] if extra_page_size is None else extra_page_size
        if extra_kv_format is None:
            extra_kv_format = extra_format_of(extra_kv_cache, format_of(kv_cache, kv_format))
        which["extra_kv_format"] = extra_kv_format
        if extra_indices is None:
            which["extra_max_pages"] = extra_block_table.shape[1]
        else:
            which["extra_topk"] = extra_indices.shape[2]
    return plan_of_fakes(q, cu_seqlens_q, tokens, kv_heads=kv_cache.shape[2] if kv_cache.dim() == 4 else 1,
                         page_size=kv_cache.shape[1] if page_size is None else page_size,
                         kv_format=format_of(kv_cache, kv_format), **which, **options)


def _decode(q, kv_cache, block_table=None, cache_seqlens=None, **options):
    return step.decode(q, kv_cache, block_table, cache_seqlens, **with_edges(options))


def _decode_out(q, kv_cache, block_table=None, cache_seqlens=None, *, out, lse, **options):
    step.decode(q, kv_cache, block_table, cache_seqlens, out=out, lse=lse, **with_edges(options))


def _decode_fp8(q, kv_cache, block_table=None, cache_seqlens=None, *, scale_columns=128, groups=1, **options):
    *tokens, heads, _ = q.shape
    codes, scales = _edges.empty_fp8_output(q, tokens=math.prod(tokens), heads=heads, v_dim=options.get("v_dim", 512),
                                            groups=groups, scale_columns=scale_columns)
    _, lse = step.decode(q, kv_cache, block_table, cache_seqlens, out_fp8=(codes, scales), **with_edges(options))
    return codes.view(torch.float8_e4m3fn), scales, lse


def _decode_fp8_fake(q, kv_cache, block_table=None, cache_seqlens=None, *, scale_columns=128, groups=1, **options):
    out, lse = results_of_fakes(q, kv_cache, block_table, cache_seqlens, **options)
    return (*fp8_of_fakes(out, scale_columns, groups), lse)


def _combine(partial_out, partial_lse, attn_sink=None, dtype=None):
    n, batch, tokens, heads, v_dim = partial_out.shape
    out = partial_out.new_empty((batch, tokens, heads, v_dim), dtype=torch.float32 if dtype is None else dtype)
    return _native.combine(partial_out, partial_lse, attn_sink=attn_sink, out=out)


def _combine_fake(partial_out, partial_lse, attn_sink=None, dtype=None):
    n, batch, tokens, heads, v_dim = partial_out.shape
    return (partial_out.new_empty((batch, tokens, heads, v_dim), dtype=torch.float32 if dtype is None else dtype),
            partial_out.new_empty((batch, heads, tokens), dtype=torch.float32))


define(f"plan(Tensor q, Tensor kv_cache, {_TOKENS}{_CALLS}) -> Tensor", _plan, _plan_fake, reads_numbers=False)
define(f"decode(Tensor q, Tensor kv_cache, {_DECODE}{EDGES}) -> (Tensor, Tensor)", _decode, results_of_fakes)
define(f"decode_out(Tensor q, Tensor kv_cache, {_DECODE}{EDGES}, Tensor(a!) out, Tensor(b!) lse) -> ()", _decode_out,
       nothing)
define(f"decode_fp8(Tensor q, Tensor kv_cache, {_DECODE}{EDGES}, int scale_columns=128, int groups=1)"
       " -> (Tensor, Tensor, Tensor)", _decode_fp8, _decode_fp8_fake)
define("combine(Tensor partial_out, Tensor partial_lse, Tensor? attn_sink=None, ScalarType? dtype=None)"
       " -> (Tensor, Tensor)", _combine, _combine_fake)


def plan(q: Tensor, kv_cache: Tensor, block_table: Optional[Tensor] = None, cache_seqlens: Optional[Tensor] = None,
         **options) -> Tensor:
    """The plan of a step, for decode() of tensors of these shapes: an opaque uint8 tensor.

    Options are those of decode(), without softmax_scale, attn_sink, kv_scale and q_scale, on which no plan depends, and
    with calls_per_plan=0: how many calls of decode() get this plan, 1 for a draft model of one layer; 0: many. Calls with
    edges are told by q_edge (q_norm or q_rotate) and out_edge (out_rotate, decode_fp8()). The plan stays right when lengths change, if not balanced; the one exception is batch_invariant, which needs a new plan. For
    other shapes, options or devices the CPU refuses the plan, and a GPU does not check.
    """
    return call(torch.ops.flashlatent.plan, q, kv_cache, block_table, cache_seqlens, **options)


def decode(q: Tensor, kv_cache: Tensor, block_table: Optional[Tensor] = None,
           cache_seqlens: Optional[Tensor] = None, *, softmax_scale: float, **options) -> Tuple[Tensor, Tensor]:
    """One layer; returns (out, lse), new tensors. Shapes and meaning as in flashlatent.decode().

    options  v_dim=512, causal=False, q_rope, indices, topk_length, cu_seqlens_q, tokens, attn_sink,
             batch_invariant=False, window=0, the extra cache (extra_kv_cache, extra_indices, extra_topk_length,
             extra_block_table, extra_cache_seqlens), page_size, extra_page_size, kv_format, scales, extra_kv_format,
             kv_scale, q_scale, products="auto", shard,
             typical_tokens=0, plan, what plan() returned with the same options (without it the call plans for itself),
             the edges q_norm=0., q_rotate and out_rotate, each (positions, table), with
             pairs="gptj" and table_layout="halves",
             and check_inputs=False: True raises for lengths and page numbers out of range, on a GPU after waiting for
             the stream
    """
    return call(torch.ops.flashlatent.decode, q, kv_cache, block_table, cache_seqlens, softmax_scale=softmax_scale,
                **options)


def decode_out(q: Tensor, kv_cache: Tensor, block_table: Optional[Tensor] = None,
               cache_seqlens: Optional[Tensor] = None, *, softmax_scale: float, out: Tensor, lse: Tensor,
               **options) -> None:
    """decode() into the caller's tensors: out like q with last dimension v_dim, lse fp32 (batch, h_q, s_q)."""
    call(torch.ops.flashlatent.decode_out, q, kv_cache, block_table, cache_seqlens, softmax_scale=softmax_scale,
         out=out, lse=lse, **options)


def decode_fp8(q: Tensor, kv_cache: Tensor, block_table: Optional[Tensor] = None,
               cache_seqlens: Optional[Tensor] = None, *, softmax_scale: float, scale_columns: int = 128, groups: int = 1,
               **options) -> Tuple[Tensor, Tensor, Tensor]:
    """decode() whose output is cast to FP8 and not kept: returns (codes, scales, lse), codes as float8_e4m3fn; what they
    are, finish_outputs() says. `options` as in decode()."""
    return call(torch.ops.flashlatent.decode_fp8, q, kv_cache, block_table, cache_seqlens, softmax_scale=softmax_scale,
                scale_columns=scale_columns, groups=groups, **options)


def combine(partial_out: Tensor, partial_lse: Tensor, attn_sink: Optional[Tensor] = None,
            dtype: Optional[torch.dtype] = None) -> Tuple[Tensor, Tensor]:
    """Merges partial results, (n, batch, s_q, h_q, d_v) and fp32 (n, batch, h_q, s_q), by their lse; returns (out,
    lse), out in `dtype` (fp32 if not given). As flashlatent.combine()."""
    return call(torch.ops.flashlatent.combine, partial_out, partial_lse, attn_sink, dtype)
