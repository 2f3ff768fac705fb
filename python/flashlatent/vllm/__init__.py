"""FlashLatent inside vLLM: attention backends, registered by vLLM's plugin group `vllm.general_plugins`.

    pip install .                                        # in a checkout of FlashLatent
    vllm serve MODEL --attention-backend CUSTOM          # vLLM 0.26
    vllm serve MODEL --attention-backend FLASHLATENT     # vLLM 0.33

One name serves all models: latent caches (MLA), sparse ones (DeepSeek V3.2, GLM-5), DeepSeek V4 and V4.1, and keys and
values apart (GQA). docs/engines.md says what each backend takes and what it refuses.
"""

import logging
from typing import Any, Optional

from ._contract import Contract, read
from ._indexer_choice import offer_indexer
from ._v4_choice import V4, V41, offer_layer

__all__ = ["backend_name", "register"]

BACKEND = "flashlatent.vllm.backends.FlashLatentBackend"

_logger = logging.getLogger("flashlatent.vllm")
_name: Optional[str] = None
_done = False


def backend_name() -> Optional[str]:
    """The name of the attention backend for vLLM; None if nothing is registered."""
    return _name


def register() -> None:
    """vLLM calls this in each of its processes. If vLLM's interface is unknown, nothing is registered and one warning
    is given; nothing is ever raised."""
    global _done, _name
    if _done:
        return
    _done = True
    try:
        contract = read()
        if contract.faults:
            _stay_out(contract)
        else:
            _name = _register(contract)
            if _name is not None:
                offer_layer(V4, _name, contract.v4_faults)
                offer_layer(V41, _name, contract.v41_faults)
                offer_indexer(_name, contract.indexer_faults)
    except Exception as error:  # start-up of an engine that may not even want this backend
        _logger.warning("flashlatent: no attention backend is registered with vLLM: %s: %s", type(error).__name__,
                        error)


def _stay_out(contract: Contract) -> None:
    _logger.warning(
        "flashlatent: the interface of vLLM %s is not known, so no attention backend is registered: %s. Known are "
        "vLLM 0.26 and 0.33", contract.version, "; ".join(contract.faults))


def _register(contract: Contract) -> Optional[str]:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if contract.names:
        if "FLASHLATENT" not in AttentionBackendEnum.__members__:
            register_backend("FLASHLATENT", BACKEND)
            # A spawned process unpickles vLLM's configuration before it loads plugins.
            AttentionBackendEnum["FLASHLATENT"].__reduce_ex__ = lambda protocol: (_member, ())
        return "FLASHLATENT"
    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        _logger.warning(
            "flashlatent: the attention backend CUSTOM of vLLM %s is %s already, and is left so; "
            "VLLM_PLUGINS=flashlatent loads this package's plugin alone", contract.version, custom.get_path())
        return None
    register_backend(custom, BACKEND)
    return "CUSTOM"


def _member() -> Any:
    """vLLM's name of the backend, registered if it is not yet."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    register()
    return AttentionBackendEnum["FLASHLATENT"]
