"""The tokens that the indexer of SGLang's DSA layers (DeepSeek V3.2, GLM-5) chooses, by index_topk().

SGLang's own indexer gathers a prompt's keys first and writes all scores to memory; a separate kernel finds the best.
"""

from typing import Any, Optional

import torch
from sglang.srt.environ import envs
from sglang.srt.model_executor.forward_context import get_token_to_kv_pool

import flashlatent

from .._query_rows import cu_seqlens_of
from ._indexer_choice import refuse

_KEY = 132  # bytes


def topk_paged(self: Any, forward_batch: Any, layer_id: int, q_fp8: torch.Tensor, weights: torch.Tensor,
               metadata: Any) -> torch.Tensor:
    """In place of Indexer._get_topk_paged(): decode and drafts, with a row of the page table for each query token."""
    mode, rows = forward_batch.forward_mode, sum(metadata.get_dsa_extend_len_cpu())
    drafts = mode.is_target_verify() or mode.is_draft_extend_v2()
    seen = metadata.get_seqlens_expanded() if drafts else metadata.get_seqlens_int32()
    chosen = _nothing(self, q_fp8)
    if rows > 0:
        _choose(self, layer_id, metadata, q_fp8[:rows, None], weights[:rows].transpose(1, 2),
                metadata.get_page_table_64()[:rows], seen[:rows], chosen[:rows, None])
    return chosen


def topk_ragged(self: Any, enable_dual_stream: bool, forward_batch: Any, layer_id: int, q_fp8: torch.Tensor,
                weights: torch.Tensor, metadata: Any, topk_result: Optional[torch.Tensor] = None) -> torch.Tensor:
    """In place of Indexer._get_topk_ragged(): prompts, with a row of the page table for each request."""
    chosen = _nothing(self, q_fp8) if topk_result is None else topk_result
    seen, pages = metadata.get_seqlens_expanded(), metadata.get_page_table_64()
    rows = seen.shape[0]
    if rows > 0:
        _choose(self, layer_id, metadata, q_fp8[:rows], weights[:rows].squeeze(-1), pages, seen, chosen[:rows],
                cu_seqlens_of(metadata.get_token_to_batch_idx()[:rows], len(pages)))
    return chosen


def _nothing(indexer: Any, q: torch.Tensor) -> torch.Tensor:
    return torch.full((q.shape[0], indexer.index_topk), -1, dtype=torch.int32, device=q.device)


def _choose(indexer: Any, layer_id: int, metadata: Any, q: torch.Tensor, weights: torch.Tensor, pages: torch.Tensor,
            seen: torch.Tensor, out: torch.Tensor, cu_seqlens_q: Optional[torch.Tensor] = None) -> None:
    """Writes to `out` what attention wants: numbers within a request; the same plus the number of keys of earlier
    requests (RAGGED); or slots (PAGED)."""
    keys = indexer._get_index_k_read_buffer(get_token_to_kv_pool(), layer_id)
    page_size = keys.shape[1] // _KEY
    if page_size != metadata.attn_metadata.page_size or getattr(metadata.attn_metadata, "indexer_logical_page_table",
                                                                None) is not None:
        refuse(["index keys are shared out over ranks"])
    fused = envs.SGLANG_DSA_FUSE_TOPK.get() and not metadata.force_unfused_topk
    ragged = metadata.topk_transform_method.name == "RAGGED"
    slots = dict(slot_table=pages, slot_page_size=page_size) if fused and not ragged else {}
    flashlatent.index_topk(q, weights, keys, pages, seen, topk=indexer.index_topk, page_size=page_size,
                           cu_seqlens_q=cu_seqlens_q, out=out, **slots)
    if fused and ragged:
        begins = metadata.attn_metadata.topk_indices_offset[:len(out), None]
        out.copy_(torch.where(out >= 0, out + begins, out))
