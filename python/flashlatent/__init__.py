"""Decode attention for latent (MLA) KV caches in pages, on NVIDIA Hopper and CPUs.

    out, lse = flashlatent.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=192**-0.5)

Arrays are NumPy's, torch's, CuPy's, JAX's or any with DLPack, read where they are, never copied. An engine
makes a Plan, calls schedule() once a step and decode() once a layer. torch operators are in flashlatent.torch,
a drop-in for the package flash_mla in flashlatent.flash_mla.
"""

import importlib

from ._decode import decode
from ._errors import (ExhaustedError, FlashLatentError, InternalError, InvalidArgumentError, UnavailableError,
                      UnsupportedError)
from ._native import (PagePool, Plan, Problem, Sequence, Step, __version__, append_latent, combine, convert_cache,
                      copy_pages, default_backend, describe_plan, explain, gather_cache, info)

__all__ = [
    "ExhaustedError", "FlashLatentError", "InternalError", "InvalidArgumentError", "PagePool", "Plan", "Problem",
    "Sequence", "Step", "UnavailableError", "UnsupportedError", "__version__", "append_latent", "combine",
    "convert_cache", "copy_pages", "decode", "default_backend", "describe_plan", "explain", "gather_cache", "info",
]


def __getattr__(name):
    """The modules that need torch are imported when they are first used."""
    if name in ("flash_mla", "torch"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'flashlatent' has no attribute '{name}'")
