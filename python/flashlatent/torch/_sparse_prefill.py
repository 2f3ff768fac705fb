"""Sparse prefill."""

from typing import Tuple

import torch
from torch import Tensor

from .. import _native
from .._errors import InvalidArgumentError
from .._torch_call import call
from ._library import define, nothing

_SPARSE_PREFILL = ("Tensor q, Tensor kv, Tensor indices, *, float softmax_scale, int v_dim=512, "
                   "Tensor? q_rope=None, Tensor? topk_length=None, Tensor? attn_sink=None, Tensor? extra_kv_cache=None, "
                   "Tensor? extra_indices=None, Tensor? extra_topk_length=None, int? page_size=None, "
                   "int? extra_page_size=None, Tensor? kv_scale=None, str? kv_format=None, str? scales=None, "
                   "str? extra_kv_format=None, bool check_inputs=False")


def _sparse_prefill(q, kv, indices, **options):
    return _native.sparse_prefill(q, kv, indices, **options)


def _sparse_prefill_fake(q, kv, indices, *, v_dim=512, **options):
    if q.dim() != 3:
        raise InvalidArgumentError(f"q has {q.dim()} dimensions; (s_q, h_q, d) is expected")
    return (q.new_empty((*q.shape[:2], v_dim)), q.new_empty(q.shape[:2], dtype=torch.float32),
            q.new_empty(q.shape[:2], dtype=torch.float32))


def _sparse_prefill_out(q, kv, indices, **options):
    _native.sparse_prefill(q, kv, indices, **options)


define(f"sparse_prefill({_SPARSE_PREFILL}) -> (Tensor, Tensor, Tensor)", _sparse_prefill, _sparse_prefill_fake)
define(f"sparse_prefill_out({_SPARSE_PREFILL}, Tensor(a!) out, Tensor(b!) max_logits, Tensor(c!) lse) -> ()",
       _sparse_prefill_out, nothing)


def sparse_prefill(q: Tensor, kv: Tensor, indices: Tensor, *, softmax_scale: float,
                   **options) -> Tuple[Tensor, Tensor, Tensor]:
    """Sparse prefill; returns (out, max_logits, lse), new tensors. Shapes and meaning as in
    flashlatent.sparse_prefill().

    options  v_dim=512, q_rope, topk_length, attn_sink, the extra cache (extra_kv_cache, extra_indices, extra_topk_length),
             page_size, extra_page_size, kv_format, scales, extra_kv_format, kv_scale, and check_inputs=False, as in
             decode()
    """
    return call(torch.ops.flashlatent.sparse_prefill, q, kv, indices, softmax_scale=softmax_scale, **options)


def sparse_prefill_out(q: Tensor, kv: Tensor, indices: Tensor, *, softmax_scale: float, out: Tensor,
                       max_logits: Tensor, lse: Tensor, **options) -> None:
    """sparse_prefill() into the caller's tensors: out (s_q, h_q, v_dim), max_logits and lse fp32 (s_q, h_q)."""
    call(torch.ops.flashlatent.sparse_prefill_out, q, kv, indices, softmax_scale=softmax_scale, out=out,
         max_logits=max_logits, lse=lse, **options)
