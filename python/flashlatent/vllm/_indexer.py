"""The tokens that sparse attention's indexer chooses, by index_topk(), from what vLLM's builders say of a batch.

vLLM's own indexer gathers a prompt's keys first, and a separate kernel finds the best scores.
"""

from typing import Any, Dict, NamedTuple, Optional

import torch
from torch import Tensor

import flashlatent

from .._query_rows import cu_seqlens_of


class Indexer(NamedTuple):
    """An indexer's tensors in a step. Rows are query tokens, those of decode first."""

    q: Tensor  # e4m3 (rows, heads, 128)
    weights: Tensor  # fp32 (rows, heads)
    kv_cache: Tensor  # uint8 (pages, page_size, 132)
    chosen: Tensor  # int32 (rows, topk or more), written: numbers within a request, -1 behind
    topk: int
    blocks: Optional[Tensor] = None  # int32 (rows, n), DeepSeek V4.1's candidates
    block_size: int = 0
    choose_blocks: bool = False  # whether candidates are written, or bound what is scored

    def choose(self, metadata: Any) -> None:
        """Of a DeepseekV32IndexerMetadata's rows."""
        if metadata.num_decodes > 0 and metadata.num_decode_tokens > 0:
            self._choose(slice(0, metadata.num_decode_tokens), **_decode(metadata.decode, metadata.num_decode_tokens))
        if metadata.num_prefills > 0:
            for chunk in metadata.prefill.chunks:
                self._choose(slice(chunk.token_start, chunk.token_end), **_prompts(chunk))

    def _choose(self, rows: slice, block_table: Tensor, cache_seqlens: Tensor,
                cu_seqlens_q: Optional[Tensor] = None) -> None:
        """cu_seqlens_q: rows are ragged; without it cache_seqlens is (batch, s_q), and so are they."""
        if rows.start == rows.stop:
            return

        def shaped(tensor: Tensor) -> Tensor:
            part = tensor[rows]
            return part if cu_seqlens_q is not None else part.unflatten(0, cache_seqlens.shape)

        options: Dict[str, Any] = {}
        if self.blocks is not None and self.choose_blocks:
            options = dict(candidate_block=self.block_size, best_blocks=self.blocks.shape[1])
        elif self.blocks is not None:
            options = dict(candidate_block=self.block_size, candidates=shaped(self.blocks))
        best = flashlatent.index_topk(
            shaped(self.q), shaped(self.weights), self.kv_cache, block_table, cache_seqlens, topk=self.topk,
            cu_seqlens_q=cu_seqlens_q, out=shaped(self.chosen)[..., :self.topk], **options)[3]
        if best is not None:
            shaped(self.blocks).copy_(best)


def _decode(metadata: Any, rows: int) -> Dict[str, Tensor]:
    """metadata.seq_lens is (requests, tokens): how many tokens each query token of a request with `tokens` query tokens
    sees. A request with fewer query tokens has the last of these lengths; vLLM pads its rows. Rows behind the last
    request's see nothing."""
    lens, counts = metadata.seq_lens, metadata.decode_lens
    requests = counts.shape[0]
    lens = lens[:requests].view(requests, -1)
    table = metadata.block_table[:requests]
    if not metadata.requires_padding and rows == lens.numel():
        return dict(block_table=table, cache_seqlens=lens)
    ends = counts.cumsum(0, dtype=torch.int32)
    row = torch.arange(rows, dtype=torch.int32, device=lens.device)
    request = torch.searchsorted(ends, row, right=True).clamp_(max=requests - 1)
    column = (lens.shape[1] - ends[request] + row).clamp_(0, lens.shape[1] - 1)
    return dict(block_table=table, cache_seqlens=torch.where(row < ends[-1], lens[request, column], 0),
                cu_seqlens_q=torch.cat([ends.new_zeros(1), ends[:-1], ends.new_full((1,), rows)]))


def _prompts(chunk: Any) -> Dict[str, Tensor]:
    """For a chunk vLLM says which run of gathered keys each row sees, [cu_seqlen_ks, cu_seqlen_ke), and where each
    request's keys begin."""
    begins = chunk.local_cu_seq_lens
    # A request without keys begins where another one does; it does not matter to which of them rows are assigned.
    request = (torch.searchsorted(begins, chunk.cu_seqlen_ks, right=True) - 1).clamp_(max=begins.shape[0] - 2)
    return dict(block_table=chunk.block_table, cache_seqlens=chunk.cu_seqlen_ke - chunk.cu_seqlen_ks,
                cu_seqlens_q=cu_seqlens_of(request, begins.shape[0] - 1))
