"""What the user set in SGLang, as far as the MLA backend asks.

SGLang 0.5.17 keeps settings in ServerArgs. SGLang 0.5.23 publishes them in namespaces of its runtime context; its
ServerArgs may lack what SGLang chose by itself.
"""

from typing import Any, List, NamedTuple, Optional

from ._contract import faults_of

_NEEDS = dict.fromkeys(["get_exec", "get_parallel", "get_spec"], "")


class Settings(NamedTuple):
    prefill_backend: Optional[str]
    draft_tokens: int
    eagle_topk: int
    dcp_size: int
    deterministic: bool


def settings_of(model_runner: Any) -> Settings:
    arguments = model_runner.server_args
    if hasattr(arguments, "get_attention_backends"):  # 0.5.17
        prefill_backend, _ = arguments.get_attention_backends()
        spec = parallel = deterministic = arguments
    else:
        from sglang.srt.runtime_context import get_exec, get_parallel, get_spec

        prefill_backend = model_runner.prefill_attention_backend_str
        spec, parallel, deterministic = get_spec(), get_parallel(), get_exec().deterministic
    return Settings(prefill_backend=prefill_backend,
                    draft_tokens=int(getattr(spec, "speculative_num_draft_tokens", None) or 1),
                    eagle_topk=int(getattr(spec, "speculative_eagle_topk", None) or 1),
                    dcp_size=int(getattr(parallel, "dcp_size", None) or 1),
                    deterministic=bool(getattr(deterministic, "enable_deterministic_inference", False)))


def missing_settings(server_args: Any) -> List[str]:
    """What is missing for settings_of(); `server_args` is the class ServerArgs."""
    if hasattr(server_args, "get_attention_backends"):
        return []
    from sglang.srt import runtime_context

    faults = faults_of((runtime_context, _NEEDS))
    return [f"ServerArgs has no get_attention_backends, and in runtime_context {fault}" for fault in faults]
