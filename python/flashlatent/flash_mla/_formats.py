"""flash_mla's names of cache formats, and this package's."""

from typing import NamedTuple, Optional

from torch import Tensor

from .. import _native
from .._arguments import shown
from .._errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError

# This package's formats by name: bytes of a token, 0 where the number of elements decides; and the formats whose
# arrangement use_legacy chooses.
_TOKEN_BYTES = {format["name"]: format["token_bytes"] for format in _native._formats()}
_ARRANGED = {format["name"] for format in _native._formats() if format["scales"] is not None}
# All names that kv_format= takes, the original's first.
_NAMES = {"V32": "fp8_656", "V32_NO_ROPE": "fp8_528", "V4": "fp8_584", "V41": "mxfp8_528", "V41_FP4": "nvfp4_288",
          **{name: name for name in _TOKEN_BYTES}}
# DeepSeek V4.1's formats by width, for caches whose format is not named.
_V41 = {_TOKEN_BYTES[name]: name for name in ("mxfp8_528", "nvfp4_288")}


class CacheFormats(NamedTuple):
    """Arguments of decode(). An extra cache has the first cache's format, or by its width nvfp4_288 beside
    mxfp8_528."""
    kv_format: Optional[str] = None
    scales: Optional[str] = None
    extra_kv_format: Optional[str] = None


def formats_of(kv_format: Optional[str], k_cache: Tensor, extra_k_cache: Optional[Tensor],
               use_legacy: bool) -> CacheFormats:
    """The formats by kv_format= and use_legacy=, and for a cache of 528 or 288 bytes by its width."""
    if not isinstance(k_cache, Tensor) or k_cache.dim() == 0:
        raise ArgumentTypeError(f"k_cache is {shown(k_cache)}; a torch.Tensor (pages, page_size, 1, d) is expected")
    if kv_format is None:
        format = _V41.get(k_cache.shape[-1]) if k_cache.element_size() == 1 else None
    else:
        format = _named(kv_format, k_cache)
    # V41_FP4 is the format of V4.1's compressed tokens, so of the extra cache if there is one.
    extra = "nvfp4_288" if kv_format == "V41_FP4" and extra_k_cache is not None else None
    return CacheFormats(format, ("page" if use_legacy else "token") if format in _ARRANGED else None, extra)


def _named(kv_format, k_cache):
    """This package's name of the format. Refuses a cache of another format."""
    if not isinstance(kv_format, str) or kv_format not in _NAMES:
        raise UnsupportedError(f"kv_format is {shown(kv_format)}; {', '.join(map(repr, _NAMES))} are accepted")
    allowed = [_NAMES[kv_format]] if kv_format != "V41_FP4" else [*_V41.values()]
    last, bytes = k_cache.shape[-1], k_cache.element_size() == 1
    for name in allowed:
        if (name == "plain" and not bytes) or (bytes and last == _TOKEN_BYTES[name] != 0) or (
                name == "e4m3" and bytes and last in (576, 512)):
            return name
    wanted = {"plain": "it must have q's dtype", "e4m3": "it must be of bytes, and its last dimension 576 or 512"}.get(
        allowed[0], f"its last dimension must be {' or '.join(str(_TOKEN_BYTES[name]) for name in allowed)}")
    raise InvalidArgumentError(f"k_cache is {k_cache.dtype} {tuple(k_cache.shape)}; with kv_format {kv_format!r} {wanted}")
