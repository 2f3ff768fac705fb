"""PyTorch operators: torch.ops.flashlatent.*, for torch.compile(fullgraph=True) and CUDA graphs.

    plan = flashlatent.torch.plan(q, kv_cache, block_table, cache_seqlens)          # once per step
    out, lse = flashlatent.torch.decode(q, kv_cache, block_table, cache_seqlens,
                                        softmax_scale=192**-0.5, plan=plan)         # once per layer

Tensors lie on one device, a GPU or the CPU; work goes to its current stream, memory comes from torch's allocator.
Nothing is kept between calls, so any threads and streams may call at once. A plan() captured in a CUDA graph plans at
each replay for the lengths that are then in memory. There is no gradient: decode is inference.
"""

from .. import _needs_torch  # before the others
from ._decode import combine, decode, decode_fp8, decode_out, plan
from ._edges import finish_outputs, prepare_queries
from ._indexer import append_index_keys, index_topk, index_topk_out, merge_topk, quantize_index_queries
from ._key_value import append_kv, convert_kv, decode_kv, decode_kv_out, gather_kv, plan_kv
from ._kv_cache import append_latent, convert_cache, copy_pages, gather_cache
from ._library import sign as _sign
from ._sparse_prefill import sparse_prefill, sparse_prefill_fp8, sparse_prefill_out

__all__ = [
    "append_index_keys", "append_kv", "append_latent", "combine", "convert_cache", "convert_kv", "copy_pages",
    "decode", "decode_fp8", "decode_kv", "decode_kv_out", "decode_out", "finish_outputs", "gather_cache", "gather_kv", "index_topk",
    "index_topk_out", "merge_topk", "plan", "plan_kv", "prepare_queries", "quantize_index_queries", "sparse_prefill",
    "sparse_prefill_fp8", "sparse_prefill_out",
]

for _name in __all__:
    _sign(globals()[_name])
