"""Keys and values apart: decode, plans for it, and operations on their caches."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from .. import _native
from .._errors import InvalidArgumentError
from .._native import Problem
from .._torch_call import call
from ._library import define, nothing
from ._planning import plan_of_fakes, planned, results_of_fakes, step

_KV = ("Tensor q, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor cache_seqlens, *, "
       "bool causal=False, int window=0, Tensor? cu_seqlens_q=None, SymInt? tokens=None, "
       "bool batch_invariant=False, int[]? shard=None, int typical_tokens=0")
_DECODE_KV = _KV + (", float softmax_scale, float soft_cap=0., Tensor? alibi_slopes=None, Tensor? key_scale=None, "
                    "Tensor? value_scale=None, Tensor? attn_sink=None, Tensor? plan=None, bool check_inputs=False")


def _kv_shape(key_cache, value_cache):
    """(page_size, h_kv, d_qk, d_v) of a cache, separate or packed."""
    if key_cache.dim() != 5:
        return (*key_cache.shape[1:], value_cache.shape[3])
    _, heads, units, page_size, x = key_cache.shape
    return page_size, heads, units * x, value_cache.shape[2]


def _plan_kv(q, key_cache, value_cache, block_table, cache_seqlens, **options):
    problem = Problem.of_kv_arrays(q, key_cache, value_cache, block_table, softmax_scale=1.0, **options)
    return planned(problem, q, cache_seqlens)


def _plan_kv_fake(q, key_cache, value_cache, block_table, cache_seqlens, *, cu_seqlens_q=None, tokens=None, **options):
    page_size, kv_heads, _, v_dim = _kv_shape(key_cache, value_cache)
    return plan_of_fakes(q, cu_seqlens_q, tokens, batch=block_table.shape[0], max_pages=block_table.shape[1],
                         kv_heads=kv_heads, page_size=page_size, v_dim=v_dim,
                         layout="packed" if key_cache.dim() == 5 else "separate",
                         kv_format="e4m3" if key_cache.element_size() == 1 else "plain", **options)


def _decode_kv(*tensors, **options):
    return step.decode_kv(*tensors, **options)


def _decode_kv_fake(q, key_cache, value_cache, block_table, cache_seqlens, *, cu_seqlens_q=None, tokens=None,
                    **options):
    return results_of_fakes(q, key_cache, v_dim=_kv_shape(key_cache, value_cache)[3], cu_seqlens_q=cu_seqlens_q,
                            tokens=tokens)


def _decode_kv_out(*tensors, **options):
    step.decode_kv(*tensors, **options)


def _append_kv(keys, values, slot_mapping, key_cache, value_cache, key_scale=None, value_scale=None):
    _native.append_kv(keys, values, slot_mapping, (key_cache, value_cache, key_scale, value_scale))


def _gather_kv(key_cache, value_cache, block_table, cu_seqlens, rows, first_token=None, dtype=None, key_scale=None,
               value_scale=None):
    keys, values = _gather_kv_fake(key_cache, value_cache, block_table, cu_seqlens, rows, first_token, dtype)
    return _native.gather_kv((key_cache, value_cache, key_scale, value_scale), block_table, cu_seqlens, first_token,
                             keys=keys, values=values)


def _gather_kv_fake(key_cache, value_cache, block_table, cu_seqlens, rows, first_token=None, dtype=None,
                    key_scale=None, value_scale=None):
    _, heads, *dims = _kv_shape(key_cache, value_cache)
    dtype = key_cache.dtype if dtype is None else dtype
    return tuple(key_cache.new_empty((rows, heads, d), dtype=dtype) for d in dims)


def _convert_kv(key_cache, value_cache, layout=None, dtype=None, key_scale=None, value_scale=None, new_key_scale=None,
                new_value_scale=None):
    keys, values = _convert_kv_fake(key_cache, value_cache, layout, dtype)
    _native.convert_kv((key_cache, value_cache, key_scale, value_scale),
                       (keys, values, new_key_scale, new_value_scale))
    return keys, values


def _convert_kv_fake(key_cache, value_cache, layout=None, dtype=None, key_scale=None, value_scale=None,
                     new_key_scale=None, new_value_scale=None):
    pages = key_cache.shape[0]
    page_size, heads, qk_dim, v_dim = _kv_shape(key_cache, value_cache)
    dtype = key_cache.dtype if dtype is None else dtype
    if layout is None:
        layout = "packed" if key_cache.dim() == 5 else "separate"
    if layout == "packed":
        x = 16 // dtype.itemsize
        shapes = (pages, heads, qk_dim // x, page_size, x), (pages, heads, v_dim, page_size)
    elif layout == "separate":
        shapes = (pages, page_size, heads, qk_dim), (pages, page_size, heads, v_dim)
    else:
        raise InvalidArgumentError(f"layout is '{layout}'; separate and packed are accepted")
    return tuple(key_cache.new_empty(shape, dtype=dtype) for shape in shapes)


define(f"plan_kv({_KV}, int calls_per_plan=0) -> Tensor", _plan_kv, _plan_kv_fake, reads_numbers=False)
define(f"decode_kv({_DECODE_KV}) -> (Tensor, Tensor)", _decode_kv, _decode_kv_fake)
define(f"decode_kv_out({_DECODE_KV}, Tensor(a!) out, Tensor(b!) lse) -> ()", _decode_kv_out, nothing)
define("append_kv(Tensor keys, Tensor values, Tensor slot_mapping, Tensor(a!) key_cache, Tensor(b!) value_cache, "
       "Tensor? key_scale=None, Tensor? value_scale=None) -> ()", _append_kv, nothing)
define("gather_kv(Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor cu_seqlens, SymInt rows, "
       "Tensor? first_token=None, ScalarType? dtype=None, Tensor? key_scale=None, Tensor? value_scale=None)"
       " -> (Tensor, Tensor)", _gather_kv, _gather_kv_fake)
define("convert_kv(Tensor key_cache, Tensor value_cache, str? layout=None, ScalarType? dtype=None, "
       "Tensor? key_scale=None, Tensor? value_scale=None, Tensor? new_key_scale=None, Tensor? new_value_scale=None)"
       " -> (Tensor, Tensor)", _convert_kv, _convert_kv_fake)


def plan_kv(q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor,
            **options) -> Tensor:
    """As plan(), for decode_kv(); options are causal=False, window=0, cu_seqlens_q, tokens,
    batch_invariant=False, shard, typical_tokens=0, calls_per_plan=0."""
    return call(torch.ops.flashlatent.plan_kv, q, key_cache, value_cache, block_table, cache_seqlens, **options)


def decode_kv(q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, *,
              softmax_scale: float, **options) -> Tuple[Tensor, Tensor]:
    """One layer of keys and values; returns (out, lse), new tensors. Shapes and meaning as in flashlatent.decode_kv().

    options  causal=False, window=0, soft_cap=0.0, alibi_slopes, key_scale, value_scale, cu_seqlens_q, tokens,
             attn_sink, batch_invariant=False, shard, typical_tokens=0, plan, what plan_kv() returned with the same
             options (without it the call plans for itself), and check_inputs=False, as in decode()
    """
    return call(torch.ops.flashlatent.decode_kv, q, key_cache, value_cache, block_table, cache_seqlens,
                softmax_scale=softmax_scale, **options)


def decode_kv_out(q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, *,
                  softmax_scale: float, out: Tensor, lse: Tensor, **options) -> None:
    """decode_kv() into the caller's tensors: out like q with last dimension d_v, lse fp32 (batch, h_q, s_q)."""
    call(torch.ops.flashlatent.decode_kv_out, q, key_cache, value_cache, block_table, cache_seqlens,
         softmax_scale=softmax_scale, out=out, lse=lse, **options)


def append_kv(keys: Tensor, values: Tensor, slot_mapping: Tensor, key_cache: Tensor, value_cache: Tensor,
              key_scale: Optional[Tensor] = None, value_scale: Optional[Tensor] = None) -> None:
    """Writes new tokens into a cache of keys and values; see flashlatent.append_kv()."""
    call(torch.ops.flashlatent.append_kv, keys, values, slot_mapping, key_cache, value_cache, key_scale, value_scale)


def gather_kv(key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cu_seqlens: Tensor, rows: int,
              first_token: Optional[Tensor] = None, dtype: Optional[torch.dtype] = None,
              key_scale: Optional[Tensor] = None, value_scale: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
    """Requests' keys and values side by side, (rows, h_kv, d_qk) and (rows, h_kv, d_v), in the cache's dtype or another
    (for an e4m3 cache a dtype must be given); see flashlatent.gather_kv()."""
    return call(torch.ops.flashlatent.gather_kv, key_cache, value_cache, block_table, cu_seqlens, rows, first_token,
                dtype, key_scale, value_scale)


def convert_kv(key_cache: Tensor, value_cache: Tensor, layout: Optional[str] = None,
               dtype: Optional[torch.dtype] = None, key_scale: Optional[Tensor] = None,
               value_scale: Optional[Tensor] = None, new_key_scale: Optional[Tensor] = None,
               new_value_scale: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
    """New (keys, values) in another layout ('separate', 'packed') or dtype (torch.uint8 or float8_e4m3fn is e4m3, with
    the new scales); see flashlatent.convert_kv()."""
    return call(torch.ops.flashlatent.convert_kv, key_cache, value_cache, layout, dtype, key_scale, value_scale,
                new_key_scale, new_value_scale)
