"""What the backends have in common: the methods by which vLLM asks what they take."""

from typing import Any, ClassVar, List, Optional, Tuple

import torch
from vllm.v1.attention.backend import MultipleOf

from . import _refusals
from .backends import registered_name


def calls_per_plan(layer_names: List[str], fast_build: bool) -> int:
    """How many layers read a builder's metadata, and so a plan: its own, but of a draft's (fast_build) one."""
    return 1 if fast_build else len(layer_names)


class Backend:
    supported_dtypes: ClassVar[List[torch.dtype]] = [torch.bfloat16, torch.float16]

    @staticmethod
    def get_name() -> str:
        return registered_name()

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list:
        return [MultipleOf(_refusals.BLOCK)]

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return capability.major == 9


class LatentBackend(Backend):
    """Caches of latent rows: plain ones; fp8_ds_mla, which is the library's fp8_656; and fp8, its e4m3."""

    plain: ClassVar[List[Any]] = ["auto", "bfloat16", "float16"]
    fp8: ClassVar[List[Any]]
    supported_kv_cache_dtypes: ClassVar[List[Any]]
    head_sizes: ClassVar[List[int]]

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int,
                           cache_dtype_str: str = "auto") -> Tuple[int, ...]:
        return num_blocks, block_size, 656 if cache_dtype_str == "fp8_ds_mla" else head_size

    @classmethod
    def get_supported_head_sizes(cls) -> List[int]:
        return cls.head_sizes

    @classmethod
    def supports_combination(cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Optional[str],
                             block_size: Optional[int], use_mla: bool, has_sink: bool, use_sparse: bool,
                             use_mm_prefix: bool, device_capability: Any) -> Optional[str]:
        return _refusals.joined(_refusals.latent(cls.head_sizes, cls.fp8, head_size, dtype, kv_cache_dtype, block_size,
                                                 device_capability))
