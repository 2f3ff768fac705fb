"""What the backends have in common: the methods by which vLLM asks what a backend takes."""

from typing import Any, ClassVar, List, Optional, Tuple

import torch
from vllm.v1.attention.backend import MultipleOf

from .._typical import of_setting, rounded
from . import _refusals
from ._options import setting
from .backends import registered_name


def calls_per_plan(layer_names: List[str], fast_build: bool) -> int:
    """How many layers read a builder's metadata, and so a plan: the builder's layers, or one for a draft
    (fast_build)."""
    return 1 if fast_build else len(layer_names)


class HintedBuilder:
    """What metadata builders have in common: how long contexts are expected to be.

    A step that runs as it is built knows its longest request. A graph is captured before lengths are known:
    --additional-config '{"flashlatent_typical_tokens": N}' says what to expect.
    """

    _capturing = False

    def __init__(self, kv_cache_spec: Any, layer_names: List[str], vllm_config: Any, device: torch.device,
                 *args: Any, **options: Any) -> None:
        name = "flashlatent_typical_tokens"
        self._tokens_in_graphs = of_setting(f"{name} in additional_config", setting(vllm_config, name))
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, *args, **options)

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        self._capturing = True
        try:
            return super().build_for_cudagraph_capture(common_attn_metadata)  # type: ignore[misc]
        finally:
            self._capturing = False

    def typical_tokens(self, common_attn_metadata: Any) -> int:
        return self._tokens_in_graphs if self._capturing else rounded(common_attn_metadata.max_seq_len)


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
