"""The functions of flash_mla.flash_mla_interface, on this library; see flashlatent.flash_mla."""

import math
import re
from typing import Any, NoReturn, Optional, Tuple

import torch
from torch import Tensor

from .. import _native
from .. import torch as operators
from .._errors import ArgumentTypeError, FlashLatentError, InvalidArgumentError, UnsupportedError
from .._native import Step
from ._formats import formats_of

_LOG2_E = 1 / math.log(2)
_is_compiling = torch.compiler.is_compiling  # each step of Python counts here

__all__ = [
    "FlashMLASchedMeta", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func", "flash_mla_sparse_fwd", "flash_mla_with_kvcache", "flash_mla_with_kvcache_fp8",
    "get_mla_decoding_metadata", "get_mla_metadata", "get_mla_metadata_dense_fp8",
]


class FlashMLASchedMeta:
    """The plans of a step, made by the step's first calls. The original's fields may be set and read; they have no
    effect."""

    __slots__ = ("decode", "have_initialized", "config", "tile_scheduler_metadata", "num_splits")

    def __init__(self, have_initialized: bool = False, config: Any = None,
                 tile_scheduler_metadata: Optional[Tensor] = None, num_splits: Optional[Tensor] = None):
        self.decode = Step()._decode_as_flash_mla
        self.have_initialized = have_initialized
        self.config = config
        self.tile_scheduler_metadata = tile_scheduler_metadata
        self.num_splits = num_splits


def get_mla_metadata(*args: Any, **kwargs: Any) -> Tuple[FlashMLASchedMeta, None]:
    """(metadata, None) for flash_mla_with_kvcache(). Arguments of older versions (cache_seqlens,
    num_q_tokens_per_head_k, num_heads_k, ...) are accepted and not needed: the first call that uses the metadata
    plans, from its own tensors."""
    return FlashMLASchedMeta(), None


def get_mla_decoding_metadata(seqlens_k: Tensor, num_q_tokens_per_head_k: int, h_k: int, h_q: Optional[int] = None,
                              is_fp8_kvcache: bool = False, topk: Optional[int] = None,
                              use_legacy: bool = False) -> Tuple[Tensor, Tensor]:
    """Two int32 tensors to set as a FlashMLASchedMeta's tile_scheduler_metadata and num_splits, on seqlens_k's device:
    (1, 8) zeros and (b + 1) 0, 1, ..., b. They have no information: the first call that uses the metadata plans, on the
    device, from its own lengths. seqlens_k is int32 (b); the other arguments are not needed."""
    metadata = torch.zeros((1, 8), dtype=torch.int32, device=seqlens_k.device)
    return metadata, torch.arange(seqlens_k.shape[0] + 1, dtype=torch.int32, device=seqlens_k.device)


def flash_mla_with_kvcache(q: Tensor, k_cache: Tensor, block_table: Optional[Tensor], cache_seqlens: Optional[Tensor],
                           head_dim_v: int, tile_scheduler_metadata: FlashMLASchedMeta, num_splits: None = None,
                           softmax_scale: Optional[float] = None, causal: bool = False,
                           is_fp8_kvcache: Optional[bool] = None, indices: Optional[Tensor] = None,
                           attn_sink: Optional[Tensor] = None, extra_k_cache: Optional[Tensor] = None,
                           extra_indices_in_kvcache: Optional[Tensor] = None, topk_length: Optional[Tensor] = None,
                           extra_topk_length: Optional[Tensor] = None, enable_batch_invariant: bool = False,
                           use_legacy: bool = False, kv_format: Optional[str] = None,
                           descale_q: Optional[Tensor] = None, descale_k: Optional[Tensor] = None, *,
                           out: Optional[Tensor] = None, check_inputs: bool = False) -> Tuple[Tensor, Tensor]:
    """MLA decode over a paged cache; returns (out (b, s_q, h_q, head_dim_v), lse (b, h_q, s_q)).

    q              bf16 or fp16 (b, s_q, h_q, d)
    k_cache        q's dtype (pages, page_size, h_kv, d); or of elements of one byte (is_fp8_kvcache, which need not be
                   given): float8_e4m3fn or uint8 (pages, page_size, 1, bytes), in one of the formats below, with scales
                   in its bytes also int8
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
    extra_k_cache  a second cache in the same softmax, as k_cache, with a page size of its own
    extra_indices_in_kvcache  int32 (b, s_q, extra topk): its tokens, as indices
    extra_topk_length  int32 (b): only so many of these indices of a request count
    enable_batch_invariant  a request's bits do not depend on its batch-mates; each call then plans anew
    kv_format      the format of k_cache, by its name there or here (docs/kv-cache-formats.md):

                     there          here         bytes per token, k_cache's last dimension
                     "V32"          "fp8_656"    656
                     "V32_NO_ROPE"  "fp8_528"    528
                     "V4"           "fp8_584"    584, a view of whole pages
                     "V41"          "mxfp8_528"  528; the extra cache 528, or 288 for V41_FP4
                     "V41_FP4"      "nvfp4_288"  288; or 528, V41, beside an extra cache of 288
                                    "e4m3"       576 or 512, with descale_k
                                    "plain"      q's dtype

                   Left out, k_cache's last dimension tells: 528 is V41 then, and 288 V41_FP4
    use_legacy     where scales of V41 and V41_FP4 lie: False, behind each token's data; True, behind a page's, whose
                   cache is a view of whole pages. Other formats have one place
    descale_q, descale_k  fp32 (1): scales of e4m3 queries and of an e4m3 cache (pages, page_size, 1, 576 or 512), as in
                   flash_mla_with_kvcache_fp8(); 1 if not given
    out            where the result goes: q's dtype, (b, s_q, h_q, head_dim_v); made if not given
    check_inputs   raise for lengths, page numbers in use and topk_length out of range, see flashlatent.decode(); on a
                   GPU the call then waits for the stream. (Not an argument of the package flash_mla.)
    lse is fp32, the natural logarithm, +inf for rows that attend to nothing (whose out is 0).

    Raises InvalidArgumentError (a ValueError) for tensors that don't fit.
    """
    _check_metadata(tile_scheduler_metadata)
    compiling = _is_compiling()
    if compiling:
        k_cache, extra_k_cache = _as_bytes(k_cache), _as_bytes(extra_k_cache)
    format = scales = extra_format = None  # the native call finds V4.1's formats by k_cache's width, faster than Python
    if kv_format is not None or compiling:
        format, scales, extra_format = formats_of(kv_format, k_cache, extra_k_cache, use_legacy)
    if compiling:
        if is_fp8_kvcache is not None and (k_cache.element_size() == 1) is not bool(is_fp8_kvcache):
            raise InvalidArgumentError(f"is_fp8_kvcache is {is_fp8_kvcache} and k_cache is {k_cache.dtype}; an fp8 "
                                       "cache has elements of one byte, any other q's dtype")
        if indices is not None:
            block_table = cache_seqlens = None
        return _compiled(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, out, causal=causal,
                         indices=indices, topk_length=topk_length, attn_sink=attn_sink, extra_kv_cache=extra_k_cache,
                         extra_indices=extra_indices_in_kvcache, extra_topk_length=extra_topk_length,
                         kv_scale=descale_k, q_scale=descale_q, batch_invariant=enable_batch_invariant,
                         check_inputs=check_inputs, kv_format=format, scales=scales, extra_kv_format=extra_format)
    try:
        return tile_scheduler_metadata.decode(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, causal,
                                              is_fp8_kvcache, indices, attn_sink, topk_length, extra_k_cache,
                                              extra_indices_in_kvcache, extra_topk_length, out, check_inputs,
                                              enable_batch_invariant, descale_k, descale_q, bool(use_legacy),
                                              format, scales, extra_format)
    except FlashLatentError as error:  # by the names of this function's arguments
        # The original takes records as int8, too. No engine does, and to ask in each call takes 0.1 us.
        first, second = _as_bytes(k_cache), _as_bytes(extra_k_cache)
        if first is not k_cache or second is not extra_k_cache:
            return flash_mla_with_kvcache(q, first, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata,
                                          num_splits, softmax_scale, causal, is_fp8_kvcache, indices, attn_sink, second,
                                          extra_indices_in_kvcache, topk_length, extra_topk_length,
                                          enable_batch_invariant, use_legacy, kv_format, descale_q, descale_k, out=out,
                                          check_inputs=check_inputs)
        raise type(error)(_in_names_of_flash_mla(str(error))) from None


def get_mla_metadata_dense_fp8(cache_seqlens: Optional[Tensor] = None, num_q_tokens_per_head_k: int = 1,
                               num_heads_k: int = 1) -> Tuple[FlashMLASchedMeta, None]:
    """(metadata, None) for flash_mla_with_kvcache_fp8(), as get_mla_metadata(): the arguments are not needed."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache_fp8(q: Tensor, k_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, head_dim_v: int,
                               tile_scheduler_metadata: FlashMLASchedMeta, num_splits: None = None,
                               softmax_scale: Optional[float] = None, causal: bool = False,
                               descale_q: Optional[Tensor] = None, descale_k: Optional[Tensor] = None, *,
                               out: Optional[Tensor] = None, check_inputs: bool = False) -> Tuple[Tensor, Tensor]:
    """MLA decode with e4m3 queries over an e4m3 cache, by the name and arguments of vLLM's fork of flash_mla; returns
    (out bf16 (b, s_q, h_q, head_dim_v), lse (b, h_q, s_q)).

    q          float8_e4m3fn or uint8 (b, s_q, h_q, d), d 576 or 512; bf16 queries are accepted, too, without descale_q
    k_cache    float8_e4m3fn or uint8 (pages, page_size, 1, d)
    descale_q  fp32 (1), or here (h_q): a query is e4m3 * descale; 1 if not given
    descale_k  fp32 (1): a cached element is e4m3 * descale; 1 if not given
    The others, and lse of rows that attend to nothing, are as in flash_mla_with_kvcache().
    """
    _check_metadata(tile_scheduler_metadata)
    if isinstance(k_cache, Tensor) and (k_cache.element_size() != 1 or k_cache.shape[-1:] not in ((512,), (576,))):
        raise InvalidArgumentError(f"k_cache is {k_cache.dtype} {tuple(k_cache.shape)}; expected float8_e4m3fn or uint8 "
                                   "(pages, page_size, 1, 576 or 512)")
    if _is_compiling():
        return _compiled(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, out, causal=causal,
                         kv_scale=descale_k, q_scale=descale_q, check_inputs=check_inputs)
    try:
        return tile_scheduler_metadata.decode(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, causal,
                                              True, None, None, None, None, None, None, out, check_inputs, False,
                                              descale_k, descale_q)
    except FlashLatentError as error:  # by the names of this function's arguments
        raise type(error)(_in_names_of_flash_mla(str(error))) from None


def _as_bytes(k_cache):
    """Records of int8 as uint8. A row of 576 or 512 has no scales of its own, and int8 there may be integers."""
    if isinstance(k_cache, Tensor) and k_cache.dtype == torch.int8 and k_cache.shape[-1:] not in ((512,), (576,)):
        return k_cache.view(torch.uint8)
    return k_cache


def _check_metadata(metadata):
    if type(metadata) is not FlashMLASchedMeta:
        raise InvalidArgumentError(
            f"tile_scheduler_metadata is a {type(metadata).__name__}; what get_mla_metadata() of "
            "flashlatent.flash_mla returns is expected")


def _compiled(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, out, **options):
    """A decode call that torch.compile traces through: by the operators, which need no metadata."""
    options["v_dim"] = head_dim_v  # torch 2.4 cannot trace |=
    options["softmax_scale"] = q.shape[-1]**-0.5 if softmax_scale is None else softmax_scale
    if out is None:
        out, lse = operators.decode(q, k_cache, block_table, cache_seqlens, **options)
    else:
        lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
        operators.decode_out(q, k_cache, block_table, cache_seqlens, out=out, lse=lse, **options)
    return out, torch.where(lse == -math.inf, math.inf, lse)


def _in_names_of_flash_mla(text):
    # The original takes an extra cache by indices alone.
    text = re.sub(r"neither (extra_indices, .*), nor extra_block_table, .*, is$", r"\1 is missing", text)
    for name, here in (("v_dim", "head_dim_v"), ("kv_cache", "k_cache"), ("extra_kv_cache", "extra_k_cache"),
                       ("extra_indices", "extra_indices_in_kvcache"), ("kv_scale", "descale_k"),
                       ("q_scale", "descale_q"), ("batch_invariant", "enable_batch_invariant")):
        text = re.sub(rf"\b{name}\b", here, text)
    return text


def flash_mla_sparse_fwd(q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float, d_v: int = 512,
                         attn_sink: Optional[Tensor] = None, topk_length: Optional[Tensor] = None,
                         use_legacy: bool = False, return_log2_lse: Optional[bool] = None, *,
                         out: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """Sparse prefill; returns (out (s_q, h_q, d_v), max_logits (s_q, h_q), lse (s_q, h_q)).

    q            bf16 or fp16 (s_q, h_q, d); on a GPU d is 576 or 512
    kv           q's dtype (s_kv, 1, d)
    indices      int32 (s_q, 1, topk); negative ones and those of s_kv and above are skipped
    sm_scale     scores are sm_scale * q . k
    d_v          V is the first d_v elements of a row; 512 on a GPU
    attn_sink    fp32 (h_q): out is scaled by exp(lse) / (exp(lse) + exp(sink))
    topk_length  int32 (s_q): only so many indices of a query token count
    use_legacy   has no effect: kv has no scales
    return_log2_lse  True: max_logits and lse are to base 2; False: both are None
    out          where the result goes: q's dtype, (s_q, h_q, d_v); made if not given
    max_logits and lse are fp32, and natural if return_log2_lse is not given. A query token that attends to nothing has
    out 0, max_logits -inf and lse +inf.

    Raises InvalidArgumentError (a ValueError) for tensors that don't fit, UnsupportedError (a NotImplementedError)
    for what no kernel takes.
    """
    options = {"softmax_scale": sm_scale, "v_dim": d_v, "attn_sink": attn_sink, "topk_length": topk_length}
    if not _is_compiling():
        if not isinstance(q, Tensor):
            raise ArgumentTypeError(f"q is a {type(q).__name__}; a torch.Tensor is expected "
                                    "(flashlatent.sparse_prefill() takes arrays of other packages)")
        try:
            out, max_logits, lse = _native.sparse_prefill(q, kv, indices, out=out, check_inputs=False, **options)
        except FlashLatentError as error:  # by the names of this function's arguments
            text = re.sub(r"\bv_dim\b", "d_v", str(error))
            raise type(error)(re.sub(r"\bsoftmax_scale\b", "sm_scale", text)) from None
    elif out is None:
        out, max_logits, lse = operators.sparse_prefill(q, kv, indices, **options)
    else:
        max_logits, lse = (q.new_empty(q.shape[:2], dtype=torch.float32) for _ in range(2))
        operators.sparse_prefill_out(q, kv, indices, out=out, max_logits=max_logits, lse=lse, **options)
    if return_log2_lse is False:
        return out, None, None
    lse = torch.where(lse == -math.inf, math.inf, lse)
    if return_log2_lse:
        max_logits, lse = max_logits * _LOG2_E, lse * _LOG2_E
    return out, max_logits, lse


def _not_built(name):
    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(f"{name} (attention over contiguous keys and values) is not built; "
                               "flash_mla_with_kvcache() and flashlatent.decode_kv() attend to paged caches")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Not built: UnsupportedError."
    return function


flash_attn_varlen_func = _not_built("flash_attn_varlen_func")
flash_attn_varlen_qkvpacked_func = _not_built("flash_attn_varlen_qkvpacked_func")
flash_attn_varlen_kvpacked_func = _not_built("flash_attn_varlen_kvpacked_func")
