"""FlashLatentBackend: the backend of the model that is being built.

vLLM looks up a backend's class by one name for all models, while latent caches, sparse layers, and keys and values
apart each need a class. The lookup happens when layers are made, with the model's configuration at hand; afterwards
vLLM uses the class's own name.
"""

from typing import Any

from . import backend_name

__all__ = ["FlashLatentBackend"]


def __getattr__(name: str) -> Any:
    if name != "FlashLatentBackend":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    model = None if config is None else config.model_config
    if model is not None and not model.use_mla:
        from .key_value import FlashLatentKeyValueBackend
        return FlashLatentKeyValueBackend
    if model is not None and hasattr(model.hf_text_config, "index_topk"):
        from .sparse_mla import FlashLatentSparseMLABackend
        return FlashLatentSparseMLABackend
    from .mla import FlashLatentMLABackend
    return FlashLatentMLABackend


def registered_name() -> str:
    """get_name() of all backends: vLLM looks up this name among its own."""
    return backend_name() or "CUSTOM"
