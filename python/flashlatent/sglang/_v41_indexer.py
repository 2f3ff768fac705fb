"""The tokens and candidate blocks that DeepSeek V4.1's indexers in SGLang 0.5.23 choose, by index_topk(), from index
keys in MXFP4. On Hopper SGLang itself computes the scores in bf16.
"""

from typing import Any, Optional

import torch
from sglang.srt.layers.attention.dsv4.metadata import expand_index_page_table
from sglang.srt.layers.attention.dsv4.v41_indexer.dense_blocks import BlockIds

import flashlatent

from .._slots import in_pages
from ._indexer_choice import refuse

_FORMAT, _KEY = "mxfp4_68", 68  # bytes


class V41Indexer:
    """In place of the indexers that make_full_topk_indexer() and make_candidate_indexer() return. Layers publish
    candidate blocks, or consume them."""

    def __init__(self, token_to_kv_pool: Any, candidate_topk_blocks: int = 0, candidate_block_size: int = 8) -> None:
        self._pool, self._blocks, self._block_size = token_to_kv_pool, candidate_topk_blocks, candidate_block_size

    def topk_decode(self, inputs: Any) -> None:
        self._decode(inputs)

    def publish_decode(self, inputs: Any) -> Optional[BlockIds]:
        blocks = self._decode(inputs, best_blocks=self._blocks)
        return None if blocks is None else BlockIds(blocks=blocks.squeeze(1))

    def consume_decode(self, inputs: Any, published: Optional[BlockIds]) -> None:
        if published is not None:
            self._decode(inputs, candidates=published.blocks.unsqueeze(1))

    def topk_prefill(self, inputs: Any) -> None:
        self._prompts(inputs)

    def publish_prefill(self, inputs: Any) -> Optional[BlockIds]:
        blocks = self._prompts(inputs, best_blocks=self._blocks)
        return None if blocks is None else BlockIds(blocks=blocks, rows_per_request=inputs.rows_per_request)

    def consume_prefill(self, inputs: Any, published: Optional[BlockIds]) -> None:
        if published is not None:
            self._prompts(inputs, candidates=published.blocks)

    def _decode(self, inputs: Any, **options: Any) -> Optional[torch.Tensor]:
        """Writes the slots of each row, which has its own row of the page table. Returns the best blocks, if asked
        to."""
        inputs.reset_outputs()
        rows = len(inputs.positions)
        if rows == 0:
            return None
        metadata, topk = inputs.paged_metadata, inputs.indexer.index_topk
        table = metadata.page_table[:rows]
        q, q_scale, weights = (part.unsqueeze(1) for part in _queries(inputs))
        return self._choose(inputs, q, q_scale, weights, table, inputs.out_page_indices[:rows, None, :topk],
                            slot_table=table, slot_page_size=metadata.compressed_page_size, **options)

    def _prompts(self, inputs: Any, **options: Any) -> Optional[torch.Tensor]:
        """Numbers within a request and, if attention reads them, slots. Rows of a request lie side by side."""
        if inputs.req_rows is None:
            refuse(["prompts are shared out over ranks (context parallelism)"])
        inputs.reset_outputs()
        rows, topk = len(inputs.positions), inputs.indexer.index_topk
        if rows == 0:
            return None
        counts = inputs.rows_per_request_device  # may have padding requests at its end
        ends = counts.cumsum(0)
        first = (ends - counts).clamp(max=rows - 1)
        page_size = self._pool.get_index_k_page_size(inputs.compress_ratio)
        table = expand_index_page_table(inputs.kv_page_table[first], full_page_size=self._pool.page_size,
                                        compress_ratio=inputs.compress_ratio, index_page_size=page_size)
        chosen = inputs.out_raw_indices[:rows, :topk]
        blocks = self._choose(inputs, *_queries(inputs), table, chosen,
                              cu_seqlens_q=torch.cat([ends.new_zeros(1), ends.clamp(max=rows)]).int(), **options)
        if inputs.out_page_indices is not None:
            requests = torch.searchsorted(ends, torch.arange(rows, device=ends.device), right=True)
            inputs.out_page_indices[:rows, :topk] = in_pages(chosen, chosen >= 0, requests[:, None], table, page_size)
        return blocks

    def _choose(self, inputs: Any, q: torch.Tensor, q_scale: torch.Tensor, weights: torch.Tensor, table: torch.Tensor,
                out: torch.Tensor, **options: Any) -> Optional[torch.Tensor]:
        keys = self._pool.get_index_k_with_scale_buffer(inputs.layer_id)
        seen = ((inputs.positions + 1) // inputs.compress_ratio).int()
        return flashlatent.index_topk(q, weights, keys, table, seen, topk=inputs.indexer.index_topk,
                                      index_format=_FORMAT, page_size=keys.shape[1] // _KEY, q_scale=q_scale, out=out,
                                      candidate_block=self._block_size, **options)[3]


def _queries(inputs: Any) -> Any:
    """(codes, their scales, weights), rotated and quantised."""
    indexer = inputs.indexer
    q = indexer.wq_b(inputs.q_lora)[0].view(len(inputs.positions), indexer.n_local_heads, indexer.index_head_dim)
    return flashlatent.quantize_index_queries(
        q, indexer.head_weights_raw(inputs.x), positions=inputs.positions, table_layout="interleaved",
        table=torch.view_as_real(inputs.freqs_cis).flatten(-2), index_format=_FORMAT)
