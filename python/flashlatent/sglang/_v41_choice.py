"""SGLANG_DSV4_KV_LAYOUT v41 and v41_new on Hopper: records of 528 and 288 bytes, which SGLang alone takes only on
Blackwell.

Nothing of SGLang changes until such a cache is made on Hopper.
"""

import functools
import importlib
import inspect
import sys
from typing import Any, List

from .. import _gpu
from .._after_import import after_import
from ._contract import faults_of

_POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator"
_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend"
_SETTING = "SGLANG_DSV4_KV_LAYOUT"  # an environment variable of SGLang's
_SELECT = "select_dsv4_kv_layout"
_LAYOUTS = {"v4", "v41", "v41_fp4", "v41_new", "v41_fp4_new"}

# What _v41_attention replaces, or calls, and the arguments.
_OF_POOL = {"fused_store_cache": "input cache indices page_size type layout freqs_cis"}
_OF_MODULE = {"_create_flashmla_metadata": ""}
_OF_BACKEND = {
    "_forward_attention": "self q k v layer forward_batch compress_ratio save_kv_cache attn_sink cos_sin_cache _",
    "_use_sparse_prefill": "self forward_batch num_qo_tokens",
}


def offer_records() -> None:
    """From now on this module chooses SGLang's layout first."""
    after_import(_POOL, _change)
    after_import(_CONFIGURATOR, _take)  # which may have imported the choice by name


def _change(pool: Any) -> None:
    theirs = getattr(pool, _SELECT, None)
    if theirs is None:  # SGLang 0.5.17
        return

    @functools.wraps(theirs)
    def select() -> Any:
        return _select(pool, theirs)

    pool.select_dsv4_kv_layout = select


def _take(configurator: Any) -> None:
    pool = sys.modules.get(_POOL)
    if hasattr(configurator, _SELECT) and hasattr(pool, _SELECT):
        configurator.select_dsv4_kv_layout = pool.select_dsv4_kv_layout  # type: ignore[union-attr]


def _select(pool: Any, theirs: Any) -> Any:
    """(layout of the window, option for the compressed caches), as SGLang's function returns them."""
    layout = pool.envs.SGLANG_DSV4_KV_LAYOUT.get().lower()
    kernel = pool.get_exec().kernel
    if layout not in ("v41", "v41_new") or kernel.dsv4_attn_backend != "flashmla" or not _gpu.on_hopper():
        return theirs()
    if not hasattr(pool, "flashlatent"):  # SGLang asks several times
        backend = importlib.import_module(_BACKEND)
        _refuse(layout, pool, backend, kernel)
        from ._v41_attention import take_over

        take_over(pool, backend)
    return pool.KVLayout.parse(layout), pool.envs.SGLANG_DSV4_COMPRESSED_KV_LAYOUT.get().lower()


def _refuse(layout: str, pool: Any, backend: Any, kernel: Any) -> None:
    """ValueError with the setting, its value and what would do."""
    start = f"flashlatent: {_SETTING} is {layout} on a GPU of compute capability 9"
    faults = _faults(pool, backend)
    if faults:
        raise ValueError(f"{start}, and the interface of this SGLang is not known: {'; '.join(faults)}; SGLang 0.5.23 "
                         "is known, and v4 is expected with others")
    if backend.use_dsv4_q8kv8_sparse_prefill(kernel.dsv4_prefill_backend):
        raise ValueError(f"{start}, and --dsv4-prefill-backend is {kernel.dsv4_prefill_backend}, or SGLang's environment "
                         "asks for flashmla_sparse_q8; auto is expected beside it, for prompts are read here")
    if _gpu.cuda_reason():
        raise ValueError(f"{start}, and flashlatent cannot use the GPU: {_gpu.cuda_reason()}; v4 is expected")


def _faults(pool: Any, backend: Any) -> List[str]:
    """What of SGLang's interface is missing or differs."""
    their_class = getattr(backend, "DeepseekV4AttnBackend", None)
    faults = faults_of((pool, _OF_POOL), (backend, _OF_MODULE), (their_class, _OF_BACKEND))
    if not _LAYOUTS <= {layout.value for layout in getattr(pool, "KVLayout", ())}:
        faults.append("KVLayout lacks one of " + ", ".join(sorted(_LAYOUTS)))
    if not faults and "_flash_mla_with_kvcache" not in inspect.getsource(their_class._forward_attention):
        faults.append("_forward_attention calls no _flash_mla_with_kvcache")
    return faults
