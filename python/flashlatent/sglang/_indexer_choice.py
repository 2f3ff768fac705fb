"""Whether the indexers of SGLang's sparse layers choose by index_topk(): the user's choice, off by default."""

import os
from functools import partial
from typing import Any, List

from .. import _gpu
from .._after_import import after_import
from ._contract import faults_of

SETTING = "FLASHLATENT_INDEXER"  # an environment variable
_DSA = "sglang.srt.layers.attention.dsa.dsa_indexer"
_NEEDS = {
    "_get_topk_paged": "self forward_batch layer_id q_fp8 weights metadata",
    "_get_topk_ragged": "self enable_dual_stream forward_batch layer_id q_fp8 weights metadata topk_result",
    "_get_index_k_read_buffer": "pool layer_id",
}
_V41 = "sglang.srt.layers.attention.deepseek_v4_backend"
_V41_NEEDS = {
    "make_candidate_indexer": "token_to_kv_pool req_to_token page_size candidate_topk_blocks candidate_block_size",
    "make_full_topk_indexer": "token_to_kv_pool req_to_token",
}
# Indexers that stay SGLang's: with pooled keys, and DeepSeek V4's.
_OTHERS = {"sglang.srt.layers.attention.dsa.dsa_indexer_kpool": "IndexerKPool",
           "sglang.srt.layers.attention.dsv4.indexer": "C4Indexer"}


def offer_indexer() -> None:
    """From now on indexers look at the setting when they are made."""
    after_import(_DSA, _change)
    after_import(_V41, _change_v41)
    for module, name in _OTHERS.items():
        after_import(module, partial(_refuse_other, name))


def wanted() -> bool:
    """Off by default. ValueError for a value that is neither 0 nor 1."""
    value = os.environ.get(SETTING, "0")
    if value not in ("0", "1"):
        raise ValueError(f"flashlatent: {SETTING} is {value!r}; 0 or 1 is expected")
    return value == "1"


def refuse(reasons: List[str]) -> None:
    if reasons:
        raise ValueError(f"flashlatent: {SETTING} is 1 and {'; '.join(reasons)}: 0 is expected")


def gpu_reasons() -> List[str]:
    if not _gpu.on_hopper():
        return ["the GPU is not of compute capability 9.0 (NVIDIA Hopper)"]
    return [f"flashlatent cannot use the GPU: {reason}"] if (reason := _gpu.cuda_reason()) else []


def _change(module: Any) -> None:
    indexer = getattr(module, "Indexer", None)
    if indexer is None:
        return
    made, faults = indexer.__init__, faults_of((indexer, _NEEDS))

    def make(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        if wanted():
            refuse(_unknown(faults) or _reasons(self))
            _take(indexer)

    indexer.__init__ = make


def _change_v41(module: Any) -> None:
    if not hasattr(module, "make_candidate_indexer"):  # SGLang 0.5.17
        return
    faults = faults_of((module, _V41_NEEDS))
    candidates, full = module.make_candidate_indexer, module.make_full_topk_indexer

    def make_candidates(*, token_to_kv_pool: Any, candidate_topk_blocks: int, candidate_block_size: int,
                        **options: Any) -> Any:
        if not wanted():
            return candidates(token_to_kv_pool=token_to_kv_pool, candidate_topk_blocks=candidate_topk_blocks,
                              candidate_block_size=candidate_block_size, **options)
        ours = _v41_indexer(faults, token_to_kv_pool, candidate_topk_blocks, candidate_block_size)
        return ours, ours

    def make_full(*, token_to_kv_pool: Any, **options: Any) -> Any:
        if not wanted():
            return full(token_to_kv_pool=token_to_kv_pool, **options)
        return _v41_indexer(faults, token_to_kv_pool)

    module.make_candidate_indexer, module.make_full_topk_indexer = make_candidates, make_full


def _v41_indexer(faults: List[str], *arguments: Any) -> Any:
    refuse(_unknown(faults) or gpu_reasons())
    from ._v41_indexer import V41Indexer

    return V41Indexer(*arguments)


def _unknown(faults: List[str]) -> List[str]:
    return [f"the interface of this SGLang is not known: {fault}" for fault in faults]


def _take(indexer: Any) -> None:
    from . import _indexer

    indexer._get_topk_paged, indexer._get_topk_ragged = _indexer.topk_paged, _indexer.topk_ragged


def _reasons(indexer: Any) -> List[str]:
    reasons = gpu_reasons()
    for name in ("num_init_tokens", "num_local_tokens"):
        if getattr(indexer, name, 0):
            reasons.append(f"{name} of the model's indexer is {getattr(indexer, name)}, not 0")
    if indexer.dsa_enable_prefill_cp:
        reasons.append("prompts are shared out over ranks (context parallelism)")
    return reasons


def _refuse_other(name: str, module: Any) -> None:
    other = getattr(module, name, None)
    if other is None:
        return
    made = other.__init__

    def make(self: Any, *args: Any, **options: Any) -> None:
        if wanted():
            refuse([f"the model's indexer is SGLang's {name}, which has no other"])
        made(self, *args, **options)

    other.__init__ = make
