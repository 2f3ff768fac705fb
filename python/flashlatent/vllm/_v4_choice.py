"""DeepSeek V4: vLLM has an attention layer of its own for it, chosen by a function of the model's module."""

import logging
from typing import Any, List

from . import _refusals
from ._after_import import after_import

_logger = logging.getLogger("flashlatent.vllm")
_MODULE = "vllm.models.deepseek_v4.nvidia.model"


def offer_layer(name: str, faults: List[str]) -> None:
    """From now on the attention backend of this name means FlashLatent's layer for DeepSeek V4, too. Where vLLM's
    interface is not known, its own layer stays, with a warning once the model is made."""
    after_import(_MODULE, lambda model: _change(model, name, faults))


def _change(model: Any, name: str, faults: List[str]) -> None:
    theirs = getattr(model, "_select_dsv4_attn_cls", None)
    if theirs is None:
        return

    def select(vllm_config: Any) -> Any:
        if getattr(vllm_config.attention_config.backend, "name", None) != name:
            return theirs(vllm_config)
        if faults:
            _logger.warning("flashlatent: DeepSeek V4 takes vLLM's own attention layer: %s", "; ".join(faults))
            return theirs(vllm_config)
        from vllm.platforms import current_platform
        sentences = _refusals.common(None, current_platform.get_device_capability())
        if sentences:
            raise ValueError(f"flashlatent: {'; '.join(sentences)}")
        from .deepseek_v4 import FlashLatentV4Attention
        return FlashLatentV4Attention

    model._select_dsv4_attn_cls = select
