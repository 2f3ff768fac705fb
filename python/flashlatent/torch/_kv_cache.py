"""Operations on latent caches, and their formats."""

from typing import Optional

import torch
from torch import Tensor

from .. import _native
from .._torch_call import call
from ._edges import TOKEN_EDGES
from ._library import define, nothing

# Arrangements of formats with bytes of their own, by name and place of scales.
_RECORDS = {(format["name"], format["scales"]): format for format in _native._formats() if format["token_bytes"] > 0}
# These formats by name: elements of a token, and its bytes. For e4m3 both are the last extent.
_SIZES = {name: (format["dim"], format["token_bytes"]) for (name, _), format in _RECORDS.items()}
# ... and by bytes of a token; the first of several formats, since calls that leave the format open are refused.
_NAMES = {bytes: name for name, (_, bytes) in reversed(_SIZES.items())}
_OF_PAGES = "fp8_584"  # the format of pages of bytes, and of new bytes of 512 elements, if no name is given


def format_of(kv_cache, said=None):
    """The format of a latent cache: for a cache of bytes the last dimension tells it if `said` does not."""
    if said is not None:
        return said
    if kv_cache.element_size() > 1:
        return "plain"
    if kv_cache.dim() != 4:
        return _OF_PAGES
    return _NAMES.get(kv_cache.shape[-1], "e4m3")


def extra_format_of(extra_kv_cache, first):
    """The format of an extra cache beside one of format `first`: None if it is the same."""
    same = extra_kv_cache.element_size() > 1 or extra_kv_cache.dim() != 4 or (
        first in _SIZES and extra_kv_cache.shape[-1] == _SIZES[first][1])
    return None if same else format_of(extra_kv_cache)


def _elements(kv_cache, kv_format):
    """Elements of a token."""
    last = kv_cache.shape[-1]
    return _SIZES.get(format_of(kv_cache, kv_format), (last, last))[0] if kv_cache.element_size() == 1 else last


def _new_format(elements, dtype, named):
    """The format of a new cache of `dtype`: for torch.uint8, which several formats have, fp8_656, or with 512 elements
    fp8_584."""
    if named is not None:
        return named
    if dtype != torch.uint8:
        return "e4m3" if dtype.itemsize == 1 else "plain"
    return _OF_PAGES if elements == 512 else "fp8_656"


def _append_latent(latent, rope, slot_mapping, kv_cache, kv_scale=None, kv_format=None, scales=None,
                   scale_floor="auto", **edges):
    _native.append_latent(latent, rope, slot_mapping, kv_cache, kv_scale=kv_scale, kv_format=kv_format, scales=scales,
                          scale_floor=scale_floor, **edges)


def _convert_cache(kv_cache, dtype, kv_scale=None, new_kv_scale=None, kv_format=None, scales=None, new_kv_format=None,
                   new_scales=None, scale_floor="auto"):
    to = _convert_cache_fake(kv_cache, dtype, None, None, kv_format, scales, new_kv_format, new_scales)
    if dtype == torch.uint8:
        if new_kv_format is None:
            new_scales = scales if new_scales is None else new_scales
            new_kv_format = kv_format if kv_cache.dtype == dtype else None
    return _native.convert_cache(kv_cache, to, kv_scale=kv_scale, new_kv_scale=new_kv_scale, kv_format=kv_format,
                                 scales=scales, format=new_kv_format, new_scales=new_scales, scale_floor=scale_floor)


def _convert_cache_fake(kv_cache, dtype, kv_scale=None, new_kv_scale=None, kv_format=None, scales=None,
                        new_kv_format=None, new_scales=None, scale_floor="auto"):
    elements = _elements(kv_cache, kv_format)
    if kv_cache.dtype == dtype == torch.uint8 and new_kv_format is None:
        new_kv_format, new_scales = format_of(kv_cache, kv_format), scales if new_scales is None else new_scales
    named = _new_format(elements, dtype, new_kv_format)
    extent = _SIZES.get(named, (elements, elements))[1]
    pages, page_size = kv_cache.shape[:2]
    record = _RECORDS.get((named, new_scales))
    unit = 1 if record is None else record["page_unit"]
    if record is not None and (record["apart"] or unit > 1):  # the array is a view of whole pages
        page_bytes = (page_size * extent + unit - 1) // unit * unit
        memory = kv_cache.new_empty((pages, page_bytes), dtype=dtype)
        return memory.as_strided((pages, page_size, 1, extent), (page_bytes, extent, extent, 1))
    return kv_cache.new_empty((*kv_cache.shape[:-1], extent), dtype=dtype)


def _gather_cache(kv_cache, block_table, cu_seqlens, rows, first_token=None, dtype=None, kv_scale=None, kv_format=None,
                  scales=None):
    out = _gather_cache_fake(kv_cache, block_table, cu_seqlens, rows, first_token, dtype, None, kv_format)
    return _native.gather_cache(kv_cache, block_table, cu_seqlens, first_token, out=out, kv_scale=kv_scale,
                                kv_format=kv_format, scales=scales)


def _gather_cache_fake(kv_cache, block_table, cu_seqlens, rows, first_token=None, dtype=None, kv_scale=None,
                       kv_format=None, scales=None):
    dtype = kv_cache.dtype if dtype is None else dtype
    extent = kv_cache.shape[-1] if dtype.itemsize == 1 else _elements(kv_cache, kv_format)
    return kv_cache.new_empty((rows, kv_cache.shape[2], extent), dtype=dtype)


def _copy_pages(source, to, pairs):
    _native.copy_pages(source, to, pairs)


define("append_latent(Tensor latent, Tensor? rope, Tensor slot_mapping, Tensor(a!) kv_cache, Tensor? kv_scale=None, "
       f"str? kv_format=None, str? scales=None, str scale_floor='auto', *, {TOKEN_EDGES}) -> ()", _append_latent, nothing)
define("convert_cache(Tensor kv_cache, ScalarType dtype, Tensor? kv_scale=None, Tensor? new_kv_scale=None, "
       "str? kv_format=None, str? scales=None, str? new_kv_format=None, str? new_scales=None, "
       "str scale_floor='auto') -> Tensor", _convert_cache, _convert_cache_fake)
define("gather_cache(Tensor kv_cache, Tensor block_table, Tensor cu_seqlens, SymInt rows, Tensor? first_token=None, "
       "ScalarType? dtype=None, Tensor? kv_scale=None, str? kv_format=None, str? scales=None) -> Tensor",
       _gather_cache, _gather_cache_fake)
define("copy_pages(Tensor source, Tensor(a!) to, Tensor pairs) -> ()", _copy_pages, nothing)


def append_latent(latent: Tensor, rope: Optional[Tensor], slot_mapping: Tensor, kv_cache: Tensor,
                  kv_scale: Optional[Tensor] = None, kv_format: Optional[str] = None, scales: Optional[str] = None,
                  scale_floor: str = "auto", **edges) -> None:
    """Writes new tokens into a cache, normalised and rotated if `edges` say so; see flashlatent.append_latent()."""
    call(torch.ops.flashlatent.append_latent, latent, rope, slot_mapping, kv_cache, kv_scale, kv_format, scales,
         scale_floor, **edges)


def convert_cache(kv_cache: Tensor, dtype: torch.dtype, kv_scale: Optional[Tensor] = None,
                  new_kv_scale: Optional[Tensor] = None, kv_format: Optional[str] = None,
                  scales: Optional[str] = None, new_kv_format: Optional[str] = None,
                  new_scales: Optional[str] = None, scale_floor: str = "auto") -> Tensor:
    """The cache in another format: torch.float8_e4m3fn is e4m3, with the new scale; torch.uint8 is new_kv_format, with
    scales where new_scales says, by default fp8_656 (of 512 elements fp8_584), or the format of a cache of bytes; see
    flashlatent.convert_cache()."""
    return call(torch.ops.flashlatent.convert_cache, kv_cache, dtype, kv_scale, new_kv_scale, kv_format, scales,
                new_kv_format, new_scales, scale_floor)


def gather_cache(kv_cache: Tensor, block_table: Tensor, cu_seqlens: Tensor, rows: int,
                 first_token: Optional[Tensor] = None, dtype: Optional[torch.dtype] = None,
                 kv_scale: Optional[Tensor] = None, kv_format: Optional[str] = None,
                 scales: Optional[str] = None) -> Tensor:
    """Requests' tokens side by side, (rows, h_kv, d), in the cache's dtype or another; see
    flashlatent.gather_cache()."""
    return call(torch.ops.flashlatent.gather_cache, kv_cache, block_table, cu_seqlens, rows, first_token, dtype,
                kv_scale, kv_format, scales)


def copy_pages(source: Tensor, to: Tensor, pairs: Tensor) -> None:
    """Copies pages between two caches; see flashlatent.copy_pages(). Within one cache call that instead: operators
    of torch may not be given a tensor twice that they write to."""
    call(torch.ops.flashlatent.copy_pages, source, to, pairs)
