"""Whether index_topk() chooses the tokens of vLLM's sparse layers: the user's choice, off by default."""

import inspect
import sys
from typing import Any, Callable, List, Set

import torch

from .._after_import import after_import
from ._indexer import Indexer
from ._options import switch

OPTION = "flashlatent_indexer"
_MODULE = "vllm.model_executor.layers.sparse_attn_indexer"
_taken: Set[str] = set()  # names of index caches whose indexer is FlashLatent's
_libraries: List[torch.library.Library] = []  # an operator lives as long as its library


def offer_indexer(name: str, faults: List[str]) -> None:
    """From now on indexers look at the option, if the attention backend has this name."""
    after_import(_MODULE, lambda module: _change(module, name, faults))


def _change(module: Any, name: str, faults: List[str]) -> None:
    if not hasattr(module, "SparseAttnIndexer"):
        return
    made = module.SparseAttnIndexer.__init__

    def make(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        from vllm.config import get_current_vllm_config

        if _wanted(self, get_current_vllm_config(), name, faults):
            _take(module)
            _taken.add(self.k_cache.prefix)
        else:  # an earlier engine of the process may have had this name
            _taken.discard(self.k_cache.prefix)

    module.SparseAttnIndexer.__init__ = make


def _wanted(indexer: Any, vllm_config: Any, name: str, faults: List[str]) -> bool:
    """ValueError if the option is set and cannot be met."""
    if not switch(vllm_config, OPTION):
        return False
    said = f"flashlatent: {OPTION} in additional_config is True"
    backend = getattr(vllm_config.attention_config.backend, "name", None)
    if backend != name:
        raise ValueError(f"{said} and the attention backend is {backend}; {name} is expected beside it")
    if faults:
        raise ValueError(f"{said}; false is expected with this vLLM: {'; '.join(faults)}")
    if indexer.use_fp4_cache:
        raise ValueError(f"{said} and indexer_kv_dtype is mxfp4; fp8 is expected beside it")
    for what in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        ranks = getattr(vllm_config.parallel_config, what)
        if ranks > 1:
            raise ValueError(f"{said} and {what} is {ranks}; 1 is expected beside it")
    return True


def _take(module: Any) -> None:
    """Replaces vLLM's function from now on: as an operator, and in modules that call it directly."""
    if _libraries:
        return
    from vllm.platforms import current_platform

    theirs, ours = module.sparse_attn_indexer, _way(module)
    library = torch.library.Library("vllm", "IMPL")
    library.impl("sparse_attn_indexer", ours, current_platform.dispatch_key, allow_override=True)
    _libraries.append(library)
    for other in list(sys.modules.values()):
        if getattr(other, "__dict__", {}).get("sparse_attn_indexer") is theirs:
            setattr(other, "sparse_attn_indexer", ours)


def _way(module: Any) -> Callable[..., torch.Tensor]:
    """Takes vLLM's arguments: calls index_topk() for indexers that this package has taken over, else vLLM's
    function."""
    from vllm.compilation.breakable_cudagraph import eager_break_during_capture
    from vllm.forward_context import get_forward_context

    theirs = module.sparse_attn_indexer
    parameters = inspect.signature(theirs).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}

    @eager_break_during_capture
    def ours(*args: Any, **options: Any) -> torch.Tensor:
        given = {**defaults, **dict(zip(defaults, args)), **options}
        name = module._resolve_layer_name(given["k_cache_prefix"])
        steps = get_forward_context().attn_metadata
        if name not in _taken or not isinstance(steps, dict):  # no dict in a run that measures memory
            return theirs(*args, **options)
        _write_keys(module, given, steps[name])
        chosen = given["topk_indices_buffer"]
        if not given.get("skip_topk_buffer_clear"):
            chosen[:given["hidden_states"].shape[0]] = -1
        Indexer(given["q_quant"], given["weights"], given["kv_cache"], chosen, given["topk_tokens"],
                given.get("candidate_blocks"), given.get("candidate_block_size", 0),
                given.get("candidate_write", False)).choose(steps[name])
        return chosen

    return ours


def _write_keys(module: Any, given: Any, metadata: Any) -> None:
    if not given["skip_k_cache_insert"]:
        slots = metadata.slot_mapping
        module.ops.indexer_k_quant_and_cache(given["k"][:slots.shape[0]], given["kv_cache"], slots,
                                             given["quant_block_size"], given["scale_fmt"])
