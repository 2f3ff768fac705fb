"""Sparse prefill."""

from typing import Tuple

import torch
from torch import Tensor

from .. import _edges, _native
from .._errors import InvalidArgumentError
from .._torch_call import call
from ._edges import EDGES, fp8_of_fakes, with_edges
from ._library import define, nothing

_SPARSE_PREFILL = ("Tensor q, Tensor kv, Tensor indices, *, float softmax_scale, int v_dim=512, "
                   "Tensor? q_rope=None, Tensor? topk_length=None, Tensor? attn_sink=None, Tensor? extra_kv_cache=None, "
                   "Tensor? extra_indices=None, Tensor? extra_topk_length=None, int? page_size=None, "
                   "int? extra_page_size=None, Tensor? kv_scale=None, Tensor? q_scale=None, str products='auto', "
                   "str? kv_format=None, str? scales=None, str? extra_kv_format=None, "
                   f"bool check_inputs=False{EDGES}")
_WITH_MAX = ", bool with_max_logits=True"


def _or_empty(max_logits, q):
    """An operator's results are tensors: an empty one stands for None."""
    return q.new_empty(0, dtype=torch.float32) if max_logits is None else max_logits


def _native_call(q, kv, indices, **options):
    # An operator is not given what equals a default; the native function's own default checks on the CPU.
    options.setdefault("check_inputs", False)
    return _native.sparse_prefill(q, kv, indices, **with_edges(options))


def _sparse_prefill(q, kv, indices, **options):
    out, max_logits, lse = _native_call(q, kv, indices, **options)
    return out, _or_empty(max_logits, q), lse


def _expect_tokens(q):
    if q.dim() != 3:
        raise InvalidArgumentError(f"q has {q.dim()} dimensions; (s_q, h_q, d) is expected")


def _sparse_prefill_fake(q, kv, indices, *, v_dim=512, with_max_logits=True, **options):
    _expect_tokens(q)
    dtype = torch.bfloat16 if q.dtype in (torch.uint8, torch.float8_e4m3fn) else q.dtype
    return (q.new_empty((*q.shape[:2], v_dim), dtype=dtype),
            q.new_empty(q.shape[:2] if with_max_logits else 0, dtype=torch.float32),
            q.new_empty(q.shape[:2], dtype=torch.float32))


def _sparse_prefill_out(q, kv, indices, **options):
    _native_call(q, kv, indices, **options)


def _sparse_prefill_fp8(q, kv, indices, *, scale_columns=128, groups=1, **options):
    _expect_tokens(q)
    tokens, heads, _ = q.shape
    codes, scales = _edges.empty_fp8_output(q, tokens=tokens, heads=heads, v_dim=options.get("v_dim", 512), groups=groups,
                                            scale_columns=scale_columns)
    _, max_logits, lse = _native_call(q, kv, indices, out_fp8=(codes, scales), **options)
    return codes.view(torch.float8_e4m3fn), scales, _or_empty(max_logits, q), lse


def _sparse_prefill_fp8_fake(q, kv, indices, *, scale_columns=128, groups=1, **options):
    out, max_logits, lse = _sparse_prefill_fake(q, kv, indices, **options)
    return (*fp8_of_fakes(out, scale_columns, groups), max_logits, lse)


define(f"sparse_prefill({_SPARSE_PREFILL}{_WITH_MAX}) -> (Tensor, Tensor, Tensor)", _sparse_prefill, _sparse_prefill_fake)
define(f"sparse_prefill_out({_SPARSE_PREFILL}, Tensor(a!) out, Tensor(b!) max_logits, Tensor(c!) lse) -> ()",
       _sparse_prefill_out, nothing)
define(f"sparse_prefill_fp8({_SPARSE_PREFILL}{_WITH_MAX}, int scale_columns=128, int groups=1) -> "
       "(Tensor, Tensor, Tensor, Tensor)",
       _sparse_prefill_fp8, _sparse_prefill_fp8_fake)


def sparse_prefill(q: Tensor, kv: Tensor, indices: Tensor, *, softmax_scale: float,
                   **options) -> Tuple[Tensor, Tensor, Tensor]:
    """Sparse prefill; returns (out, max_logits, lse), new tensors. Shapes and meaning as in
    flashlatent.sparse_prefill().

    options  v_dim=512, q_rope, topk_length, attn_sink, the extra cache (extra_kv_cache, extra_indices, extra_topk_length),
             page_size, extra_page_size, kv_format, scales, extra_kv_format, kv_scale, q_scale, products="auto", the
             edges (q_norm, q_rotate, out_rotate, pairs, table_layout), and check_inputs=False, as in decode();
             with_max_logits=False: max_logits is empty
    """
    return call(torch.ops.flashlatent.sparse_prefill, q, kv, indices, softmax_scale=softmax_scale, **options)


def sparse_prefill_out(q: Tensor, kv: Tensor, indices: Tensor, *, softmax_scale: float, out: Tensor,
                       max_logits: Tensor, lse: Tensor, **options) -> None:
    """sparse_prefill() into the caller's tensors: out (s_q, h_q, v_dim), max_logits and lse fp32 (s_q, h_q)."""
    call(torch.ops.flashlatent.sparse_prefill_out, q, kv, indices, softmax_scale=softmax_scale, out=out,
         max_logits=max_logits, lse=lse, **options)


def sparse_prefill_fp8(q: Tensor, kv: Tensor, indices: Tensor, *, softmax_scale: float, scale_columns: int = 128,
                       groups: int = 1, **options) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """sparse_prefill() whose output is cast to FP8 and not kept: returns (codes, scales, max_logits, lse), codes and
    scales as decode_fp8() does."""
    return call(torch.ops.flashlatent.sparse_prefill_fp8, q, kv, indices, softmax_scale=softmax_scale,
                scale_columns=scale_columns, groups=groups, **options)
