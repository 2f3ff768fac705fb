"""Which records DeepSeek V4.1's caches have in vLLM: the user's choice."""

from typing import Any

from ._options import setting

OPTION = "flashlatent_kv_records"
_CHOICES = ("v4", "v41")


def refuse_elsewhere(vllm_config: Any, reason: str) -> None:
    """ValueError if V4.1's records are asked for where they cannot be had."""
    if setting(vllm_config, OPTION) == "v41":
        raise ValueError(f"flashlatent: {OPTION} in additional_config is 'v41'; {reason}: 'v4' is expected, or leave "
                         "it out")


def records(vllm_config: Any) -> str:
    """'v4' or 'v41'. kv_cache_dtype nvfp4_ds_mla means V4.1's records: its window has no others."""
    said, dtype = setting(vllm_config, OPTION), vllm_config.cache_config.cache_dtype
    if said not in (None, *_CHOICES):
        raise ValueError(f"flashlatent: {OPTION} in additional_config is {said!r}; one of {', '.join(_CHOICES)} is "
                         "expected")
    if dtype == "nvfp4_ds_mla":
        if said == "v4":
            raise ValueError(f"flashlatent: {OPTION} in additional_config is 'v4' and kv_cache_dtype is {dtype}; 'v41' "
                             "is expected beside it, or leave it out")
        return "v41"
    return said or "v4"
