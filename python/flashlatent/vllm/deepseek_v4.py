"""DeepSeek V4's attention layer in vLLM. The indexer, the compressor with its cache writes, and projections are vLLM's
own; so are the layer's edges, unless the user asks for ours."""

from typing import Any, Optional

import torch
from vllm.models.deepseek_v4 import attention
from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention

from .._sparse import Chosen, decode, prefill
from ._index_edges import take_over
from ._options import EDGES, switch
from ._v4_edges import V4Edges
from ._v4_layer import V4Layer


def layer(vllm_config: Any) -> type:
    """The class for this configuration."""
    if not switch(vllm_config, EDGES):
        return FlashLatentV4Attention
    take_over(attention)
    return FlashLatentV4EdgesAttention


class FlashLatentV4Attention(V4Layer, DeepseekV4FlashMLAAttention):
    def _forward_decode(self, q: torch.Tensor, kv_cache: Optional[torch.Tensor], swa_metadata: Any, attn_metadata: Any,
                        swa_only: bool, output: torch.Tensor) -> None:
        rows = swa_metadata.num_decode_tokens
        compressed: Any = (None, None)
        if not swa_only and self.compress_ratio == 128:
            compressed = (attn_metadata.c128a_global_decode_topk_indices.flatten(1),
                          attn_metadata.c128a_decode_topk_lens)
        elif not swa_only:
            compressed = self._slots(self.topk_indices_buffer[:rows], swa_metadata, attn_metadata, 0)
        chosen = Chosen(swa_metadata.decode_swa_indices.flatten(1), swa_metadata.decode_swa_lens, *compressed)
        self._attend(decode, q, kv_cache, swa_metadata, chosen, output)

    def _forward_prefill(self, q: torch.Tensor, positions: torch.Tensor, compressed_k_cache: Optional[torch.Tensor],
                         swa_k_cache: torch.Tensor, output: torch.Tensor, attn_metadata: Any,
                         swa_metadata: Any) -> None:
        first, rows = swa_metadata.num_decode_tokens, swa_metadata.num_prefill_tokens
        compressed: Any = (None, None)
        if self.compress_ratio > 1:
            tokens = (attn_metadata.c128a_prefill_topk_indices[:rows] if self.compress_ratio == 128
                      else self.topk_indices_buffer[first:first + rows])
            compressed = self._slots(tokens, swa_metadata, attn_metadata, first)
        chosen = Chosen(swa_metadata.prefill_swa_indices.flatten(1), swa_metadata.prefill_swa_lens, *compressed)
        self._attend(prefill, q[:rows], compressed_k_cache, swa_metadata, chosen, output[:rows])


class FlashLatentV4EdgesAttention(V4Edges, FlashLatentV4Attention):
    pass
