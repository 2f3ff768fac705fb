"""DeepSeek V4's attention layer in vLLM: window and compressed tokens in one softmax, in decode and prompts.

Both caches are read in place: vLLM's own layer copies those of prompts to a bf16 workspace first, and pads heads to 64
or 128. Cache writes, the indexer, the compressor and projections are vLLM's own.
"""

from typing import Any, Optional

import torch
from vllm.forward_context import get_forward_context
from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention

from flashlatent import Step

from ._slots import Slots, slots_of_requests
from ._sparse import Chosen, decode, prefill

_HEADS = (8, 16, 32, 64, 128)  # what vLLM's kernel that normalises queries writes


class FlashLatentV4Attention(DeepseekV4FlashMLAAttention):
    @classmethod
    def get_padded_num_q_heads(cls, num_heads: int) -> int:
        for heads in _HEADS:
            if num_heads <= heads:
                return heads
        raise ValueError(f"flashlatent: num_heads is {num_heads} on this rank; at most {_HEADS[-1]} is expected")

    def forward_mqa(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, output: torch.Tensor) -> None:
        if get_forward_context().attn_metadata is None:  # memory is measured, and no workspace is wanted
            output.zero_()
            return
        super().forward_mqa(q, kv, positions, output)

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

    def _slots(self, tokens: torch.Tensor, swa_metadata: Any, attn_metadata: Any, first: int) -> Slots:
        """The slots of compressed tokens, which are numbers within a request, of rows from `first` on."""
        rows = slice(first, first + tokens.shape[0])
        return slots_of_requests(tokens, swa_metadata.token_to_req_indices[rows], attn_metadata.block_table,
                                 attn_metadata.block_size // self.compress_ratio, swa_metadata.is_valid_token[rows])

    def _attend(self, way: Any, q: torch.Tensor, extra: Optional[torch.Tensor], swa_metadata: Any, chosen: Chosen,
                out: torch.Tensor) -> None:
        heads = self.n_local_heads  # those above are padding, which the layer cuts off
        if not hasattr(swa_metadata, "flashlatent_step"):  # vLLM makes this metadata anew for each step
            swa_metadata.flashlatent_step = Step()
        options = {} if self.compress_ratio <= 1 or extra is None else dict(extra_kv_cache=extra.unsqueeze(-2))
        way(swa_metadata.flashlatent_step, q[:, :heads], self.swa_cache_layer.kv_cache.unsqueeze(-2), chosen,
            out[:, :heads], softmax_scale=self.scale, attn_sink=self.attn_sink[:heads], **options)
