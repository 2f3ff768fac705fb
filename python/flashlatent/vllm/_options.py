"""What a user says in vLLM's --additional-config."""

from typing import Any

EDGES = "flashlatent_edges"


def setting(vllm_config: Any, name: str) -> Any:
    """The option's value; None if it is not given."""
    options = vllm_config.additional_config
    return options.get(name) if isinstance(options, dict) else None


def switch(vllm_config: Any, name: str) -> bool:
    """An option that is off by default. ValueError for a value that is neither true nor false."""
    value = setting(vllm_config, name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ValueError(f"flashlatent: {name} in additional_config is {value!r}; true or false is expected")
    return value
