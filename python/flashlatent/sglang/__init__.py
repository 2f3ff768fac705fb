"""FlashLatent inside SGLang, by its plugin group `sglang.srt.plugins`: the attention backend `flashlatent` for MLA decode
(SGLang 0.5.17 and 0.5.23), and DeepSeek V4.1's caches in records of 528 and 288 bytes on Hopper (SGLang 0.5.23).

    pip install .     # in a checkout of FlashLatent
    python -m sglang.launch_server --model-path MODEL --decode-attention-backend flashlatent \
        --prefill-attention-backend fa3
    SGLANG_DSV4_KV_LAYOUT=v41 python -m sglang.launch_server --model-path MODEL

docs/engines.md says what the plugin takes and what it refuses.
"""

import logging

__all__ = ["NAME", "register"]

NAME = "flashlatent"

# What the backend overrides, and the arguments.
_BASE = {
    "init_forward_metadata_in_graph": "self forward_batch",
    "init_cuda_graph_state": "self max_bs max_num_tokens",
    "get_cuda_graph_seq_len_fill_value": "self",
    "forward_decode": "self q k v layer forward_batch save_kv_cache kwargs",
    "forward_extend": "self q k v layer forward_batch save_kv_cache kwargs",
}

_logger = logging.getLogger("flashlatent.sglang")
_done = False


def register() -> None:
    """SGLang calls this in each of its processes. If SGLang lacks what the plugin needs, nothing is registered and one
    warning says so; nothing is ever raised."""
    global _done
    if _done:
        return
    _done = True
    for offer, failed in ((_offer_records, "DeepSeek V4.1's records are not offered to SGLang"),
                          (_offer_indexer, "no indexer is offered to SGLang"),
                          (_offer_backend, "no attention backend is registered with SGLang")):
        try:
            offer()
        except Exception as error:  # start-up of an engine that may not even want this
            _logger.warning("flashlatent: %s: %s: %s", failed, type(error).__name__, error)


def _offer_records():
    from ._v41_choice import offer_records

    offer_records()


def _offer_indexer():
    from ._indexer_choice import offer_indexer

    offer_indexer()


def _offer_backend():
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, ServerArgs, add_attention_backend_choices

    from ._contract import faults_of
    from ._settings import missing_settings

    faults = [f"AttentionBackend: {fault}" for fault in faults_of((AttentionBackend, _BASE))]
    faults += missing_settings(ServerArgs)
    if faults:
        raise AttributeError(f"{'; '.join(faults)}; SGLang 0.5.17 and 0.5.23 are known")
    if NAME not in ATTENTION_BACKENDS:
        register_attention_backend(NAME)(_create)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])


def _create(runner):
    from .mla import FlashLatentMLABackend

    return FlashLatentMLABackend(runner)
