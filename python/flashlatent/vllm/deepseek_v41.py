"""DeepSeek V4.1's attention layer in vLLM, with its caches in V4's records (584 bytes per token) or in V4.1's: 528 bytes,
and 288 for compressed tokens, which vLLM's own layer stores on Blackwell alone.

The indexer, the compressor and projections are vLLM's own. So are cache writes, except of 288 bytes, and the layer's
edges, unless the user asks for ours.
"""

from functools import partial
from typing import Any, Optional

import torch
from vllm.models.deepseek_v41 import attention
from vllm.models.deepseek_v41.nvidia.flashmla import DeepseekV4FlashMLAAttention

from .._sparse import Chosen, decode, prefill
from ._index_edges import take_over
from ._options import EDGES, switch
from ._replaced import replace
from ._v4_edges import V4Edges
from ._v4_layer import V4Layer
from ._v41_records import records
from ._v41_writer import insert_compressed


def layer(vllm_config: Any) -> type:
    """The class for this configuration. vLLM asks a function of its module which records an engine stores."""
    ranks = vllm_config.parallel_config.prefill_context_parallel_size
    if ranks > 1:
        raise ValueError(f"flashlatent: prefill_context_parallel_size is {ranks}; DeepSeek V4.1 takes 1")
    new = records(vllm_config) == "v41"
    replace(attention, "_use_v41_mxfp8_kv_record", lambda theirs: lambda: new)
    if not switch(vllm_config, EDGES):
        return FlashLatentV41Attention
    take_over(attention)
    return FlashLatentV41EdgesAttention


class FlashLatentV41Attention(V4Layer, DeepseekV4FlashMLAAttention):
    writes = (288,)  # compressed records that this class writes, by bytes per token

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.compressor is not None and self.compressed_bytes_per_token in self.writes:
            self.compressor.insert_cache = partial(insert_compressed, self.compressor)

    def _forward_decode(self, q: torch.Tensor, kv_cache: Optional[torch.Tensor], swa_metadata: Any, attn_metadata: Any,
                        swa_only: bool, output: torch.Tensor) -> None:
        chosen = Chosen(swa_metadata.decode_swa_indices.flatten(1), swa_metadata.decode_swa_lens,
                        *self._compressed(swa_metadata, attn_metadata, 0, swa_metadata.num_decode_tokens))
        self._attend(decode, q, kv_cache, swa_metadata, chosen, output)

    def _forward_prefill(self, q: torch.Tensor, positions: torch.Tensor, compressed_k_cache: Optional[torch.Tensor],
                         swa_k_cache: torch.Tensor, output: torch.Tensor, attn_metadata: Any,
                         swa_metadata: Any) -> None:
        first, rows = swa_metadata.num_decode_tokens, swa_metadata.num_prefill_tokens
        chosen = Chosen(swa_metadata.prefill_swa_indices.flatten(1), swa_metadata.prefill_swa_lens,
                        *self._compressed(swa_metadata, attn_metadata, first, rows))
        self._attend(prefill, q[:rows], compressed_k_cache, swa_metadata, chosen, output[:rows])

    def _compressed(self, swa_metadata: Any, attn_metadata: Any, first: int, rows: int) -> Any:
        """(slots, counts) of rows from `first` on; none in layers with a window alone."""
        if self.compress_ratio == 0:
            return None, None
        return self._slots(self.topk_indices_buffer[first:first + rows], swa_metadata, attn_metadata, first)


class FlashLatentV41EdgesAttention(V4Edges, FlashLatentV41Attention):
    normalises_queries = False
    writes = (288, 528, 584)
