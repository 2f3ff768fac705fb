"""DeepSeek V4 and V4.1: vLLM has attention layers of its own for them, chosen by a function of the model's module."""

import importlib
import logging
from typing import Any, List, NamedTuple

from .._after_import import after_import
from . import _refusals
from ._options import EDGES, switch
from ._replaced import restore
from ._v41_records import refuse_elsewhere

_logger = logging.getLogger("flashlatent.vllm")


class _Model(NamedTuple):
    name: str
    module: str  # vLLM's, which has the function
    ours: str  # has layer(vllm_config), our class


V4 = _Model("DeepSeek V4", "vllm.models.deepseek_v4.nvidia.model", "deepseek_v4")
V41 = _Model("DeepSeek V4.1", "vllm.models.deepseek_v41.nvidia.model", "deepseek_v41")


def offer_layer(which: _Model, name: str, faults: List[str]) -> None:
    """From now on the attention backend of this name means FlashLatent's layer for this model, too. If vLLM's interface
    is not known, vLLM's own layer stays, with a warning when the model is made."""
    after_import(which.module, lambda module: _change(which, module, name, faults))


def _refuse_options(vllm_config: Any, reason: str) -> None:
    """ValueError for options of our layers if vLLM's own layer is taken."""
    refuse_elsewhere(vllm_config, reason)
    if switch(vllm_config, EDGES):
        raise ValueError(f"flashlatent: {EDGES} in additional_config is True; {reason}: False is expected, or leave it "
                         "out")


def _change(which: _Model, module: Any, name: str, faults: List[str]) -> None:
    theirs = getattr(module, "_select_dsv4_attn_cls", None)
    if theirs is None:
        return

    def select(vllm_config: Any) -> Any:
        restore()
        if getattr(vllm_config.attention_config.backend, "name", None) != name:
            _refuse_options(vllm_config, f"the attention backend is not {name}")
            return theirs(vllm_config)
        if faults:
            reason = f"{which.name} takes vLLM's own attention layer: {'; '.join(faults)}"
            _refuse_options(vllm_config, reason)
            _logger.warning("flashlatent: %s", reason)
            return theirs(vllm_config)
        if which is not V41:
            refuse_elsewhere(vllm_config, f"{which.name} has no other records than those of 584 bytes")
        from vllm.platforms import current_platform
        sentences = _refusals.common(None, current_platform.get_device_capability())
        if sentences:
            raise ValueError(f"flashlatent: {'; '.join(sentences)}")
        return importlib.import_module(f".{which.ours}", __package__).layer(vllm_config)

    module._select_dsv4_attn_cls = select
