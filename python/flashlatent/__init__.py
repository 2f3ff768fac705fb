"""Decode attention for KV caches in pages, latent (MLA) or of keys and values, on NVIDIA Hopper and CPUs.

    out, lse = flashlatent.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=192**-0.5)
    out, lse = flashlatent.decode_kv(q, key_cache, value_cache, block_table, cache_seqlens, softmax_scale=128**-0.5)

Arrays are NumPy's, torch's, CuPy's, JAX's or any with DLPack, read where they are, never copied. An engine
makes a Plan, calls schedule() once per step and decode() once per layer. torch operators are in flashlatent.torch,
a drop-in for the package flash_mla in flashlatent.flash_mla, Hugging Face models in flashlatent.transformers.
"""

import importlib

from . import _arguments, _copies  # before names are taken from _native
from ._csr import csr_to_block_table
from ._decode import decode, decode_kv
from ._edges import Rotation, empty_fp8_output, finish_outputs
from ._errors import (ArgumentTypeError, ExhaustedError, FlashLatentError, InternalError, InvalidArgumentError,
                      UnavailableError, UnsupportedError)
from ._kv_cache import KeyValueCache
from ._native import VERSION as __version__
from ._native import (PagePool, Plan, Problem, Sequence, Step, append_index_keys, append_kv, append_latent, combine, convert_cache,
                      convert_kv, copy_pages, costs_text, default_backend, describe_plan, explain, gather_cache, gather_index_keys,
                      gather_kv, index_topk, info, load_costs, merge_topk, prepare_queries, quantize_index_queries, sparse_prefill)
from ._step import CacheTokens, StepCache, StepPlan, StepTokens, prepare_step

_copies.install()

__all__ = [
    "ArgumentTypeError", "CacheTokens", "ExhaustedError", "FlashLatentError", "InternalError", "InvalidArgumentError",
    "KeyValueCache", "PagePool", "Plan", "Problem", "Rotation", "Sequence", "Step", "StepCache", "StepPlan", "StepTokens",
    "UnavailableError", "UnsupportedError",
    "__version__", "append_index_keys", "append_kv", "append_latent", "combine", "convert_cache", "convert_kv", "copy_pages",
    "costs_text", "csr_to_block_table", "decode",
    "decode_kv", "default_backend", "describe_plan", "empty_fp8_output", "explain", "finish_outputs", "gather_cache", "gather_index_keys",
    "gather_kv", "index_topk", "info", "load_costs", "merge_topk", "prepare_queries", "prepare_step",
    "quantize_index_queries", "sparse_prefill",
]


def __getattr__(name):
    """Imports modules that need other packages when they are first used."""
    if name in ("distributed", "flash_mla", "torch", "transformers"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'flashlatent' has no attribute '{name}'")
