"""The names of the package flash_mla, on this library: change the import, keep the calls.

    from flashlatent.flash_mla import flash_mla_with_kvcache, get_mla_metadata

    metadata, num_splits = get_mla_metadata()          # once a step
    out, lse = flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, 512, metadata, num_splits,
                                      causal=True)     # once a layer

Tensors are torch's, on a GPU or on the CPU. What is more than there: any head count, page size and topk, strides,
fp16, empty rows. Metadata that is older than the lengths, or shared by layers of several shapes, gives right
results; it only balances the work less well. Captured in a CUDA graph, the first call with a metadata object
captures the plan too, which follows the lengths at each replay.

    python -m flashlatent.flash_mla PROGRAM [ARGUMENT...]

runs a Python program whose `import flash_mla` gets this module.
"""

import math
import re
from typing import Any, NoReturn, Optional, Tuple

import torch
from torch import Tensor

from . import torch as operators
from ._errors import FlashLatentError, InvalidArgumentError, UnsupportedError
from ._native import Step

_is_compiling = torch.compiler.is_compiling  # each step of Python counts here

__all__ = ["flash_mla_sparse_fwd", "flash_mla_with_kvcache", "get_mla_metadata"]


class MlaMetadata:
    """Opaque: the plans of a step, made by its first calls."""

    __slots__ = ("decode",)

    def __init__(self):
        self.decode = Step()._decode_as_flash_mla


def get_mla_metadata(*args: Any, **kwargs: Any) -> Tuple[MlaMetadata, None]:
    """(metadata, None) for flash_mla_with_kvcache(). Arguments of older versions (cache_seqlens,
    num_q_tokens_per_head_k, num_heads_k, ...) are accepted and not needed: the first call that uses the metadata
    plans, from its own tensors."""
    return MlaMetadata(), None


def flash_mla_with_kvcache(q: Tensor, k_cache: Tensor, block_table: Optional[Tensor], cache_seqlens: Optional[Tensor],
                           head_dim_v: int, tile_scheduler_metadata: MlaMetadata, num_splits: None = None,
                           softmax_scale: Optional[float] = None, causal: bool = False, is_fp8_kvcache: bool = False,
                           indices: Optional[Tensor] = None, attn_sink: Optional[Tensor] = None,
                           extra_k_cache: Optional[Tensor] = None, extra_indices_in_kvcache: Optional[Tensor] = None,
                           topk_length: Optional[Tensor] = None,
                           extra_topk_length: Optional[Tensor] = None, *,
                           check_inputs: bool = False) -> Tuple[Tensor, Tensor]:
    """MLA decode over a paged cache; returns (out (b, s_q, h_q, head_dim_v), lse (b, h_q, s_q)).

    q              bf16 or fp16 (b, s_q, h_q, d)
    k_cache        q's dtype (pages, page_size, h_kv, d); is_fp8_kvcache: one byte an element, (pages, page_size,
                   1, 656)
    block_table    int32 (b, max_pages); entries past a request's length may be garbage; tokens of a negative or too
                   large page number are skipped. None in sparse decode
    cache_seqlens  int32 (b); a length below 0 counts as 0, one above max_pages * page_size as max_pages * page_size.
                   None in sparse decode
    tile_scheduler_metadata, num_splits  what get_mla_metadata() returned
    softmax_scale  1/sqrt(d) if not given
    causal         query token t of s_q sees tokens < length - s_q + t + 1; False in sparse decode
    indices        int32 (b, s_q, topk): sparse decode; -1 and indices past the cache's end are skipped
    topk_length    int32 (b): only so many indices of a request count, 0 to topk
    attn_sink      fp32 (h_q): out is scaled by exp(lse) / (exp(lse) + exp(sink))
    check_inputs   raise for lengths, page numbers in use and topk_length out of range, see flashlatent.decode(); on a
                   GPU the call then waits for the stream. (Not an argument of the package flash_mla.)
    lse is fp32, the natural logarithm, +inf for rows that attend to nothing (whose out is 0).

    The extra_* arguments are not supported: UnsupportedError (a NotImplementedError). Raises
    InvalidArgumentError (a ValueError) for tensors that don't fit.
    """
    if extra_k_cache is not None or extra_indices_in_kvcache is not None or extra_topk_length is not None:
        name = ("extra_k_cache" if extra_k_cache is not None else "extra_indices_in_kvcache"
                if extra_indices_in_kvcache is not None else "extra_topk_length")
        raise UnsupportedError(f"{name} is given; a second cache is not supported yet: None is accepted")
    if type(tile_scheduler_metadata) is not MlaMetadata:
        raise InvalidArgumentError(
            f"tile_scheduler_metadata is a {type(tile_scheduler_metadata).__name__}; what get_mla_metadata() of "
            "flashlatent.flash_mla returns is expected")
    if _is_compiling():  # traces through the operators, which need no metadata
        if (k_cache.element_size() == 1) is not bool(is_fp8_kvcache):
            raise InvalidArgumentError(f"is_fp8_kvcache is {is_fp8_kvcache} and k_cache is {k_cache.dtype}; an fp8 "
                                       "cache has elements of one byte, any other q's dtype")
        if softmax_scale is None:
            softmax_scale = q.shape[-1]**-0.5
        if indices is not None:
            block_table = cache_seqlens = None
        out, lse = operators.decode(
            q, k_cache, block_table, cache_seqlens, softmax_scale=softmax_scale, v_dim=head_dim_v, causal=causal,
            indices=indices, topk_length=topk_length, attn_sink=attn_sink, check_inputs=check_inputs)
        return out, torch.where(lse == -math.inf, math.inf, lse)
    try:
        return tile_scheduler_metadata.decode(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, causal,
                                              is_fp8_kvcache, indices, attn_sink, topk_length, check_inputs)
    except FlashLatentError as error:  # by the names of this function's arguments
        text = re.sub(r"\bv_dim\b", "head_dim_v", re.sub(r"\bkv_cache\b", "k_cache", str(error)))
        raise type(error)(text) from None


def flash_mla_sparse_fwd(q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float, d_v: int = 512,
                         attn_sink: Optional[Tensor] = None, topk_length: Optional[Tensor] = None) -> NoReturn:
    """Sparse prefill, (out, max_logits, lse): there is no kernel for it yet."""
    raise UnsupportedError(
        "flash_mla_sparse_fwd (sparse prefill) is not built yet; flash_mla_with_kvcache() with indices does sparse "
        "decode over a paged cache")


def _run_program(arguments):
    import os
    import runpy
    import sys

    from flashlatent import flash_mla  # not __main__, which this file is now

    if not arguments or not os.path.isfile(arguments[0]):
        named = f"'{arguments[0]}', not a file" if arguments else "missing"
        sys.exit(f"flashlatent.flash_mla: PROGRAM is {named}; a Python program that imports flash_mla is expected")
    sys.modules["flash_mla"] = flash_mla
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    import sys
    _run_program(sys.argv[1:])
