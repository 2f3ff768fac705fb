"""Decode with the tokens of each context spread over a process group (context parallelism).

    context = flashlatent.distributed.ContextParallel(group)                # once
    plan = context.plan(q, kv_cache, block_table, cache_seqlens)            # once per step
    out, lse = context.decode(q, kv_cache, block_table, cache_seqlens,      # once per layer
                              softmax_scale=192**-0.5, plan=plan)

Every rank holds the tokens that Interleaving gives it, and some query heads (tensor parallelism). A call gathers
the queries of all ranks, attends to the rank's own tokens with all heads, and exchanges partial results, so that
each rank merges those of its own heads. NCCL on GPUs, gloo on CPUs. A CUDA graph can capture every call.
"""

from .. import _needs_torch  # before the others
from ._context import ContextParallel, Pending
from ._tokens import Interleaving

__all__ = ["ContextParallel", "Interleaving", "Pending"]
