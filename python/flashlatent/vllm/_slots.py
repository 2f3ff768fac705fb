"""From the tokens that an indexer chose, numbers within a request, to slots of the cache."""

from typing import Any, Tuple

import torch

from .._slots import in_pages

Slots = Tuple[torch.Tensor, torch.Tensor]


def chosen_slots(impl: Any, metadata: Any, rows: int) -> Slots:
    """(slots int32 (rows, topk), -1 where none; how many each row has)."""
    chosen = impl.topk_indices_buffer[:rows]
    requests = metadata.req_id_per_token[:rows]
    if chosen.device.type == "cpu":
        return _on_cpu(chosen, requests, metadata, impl.dcp_world_size, impl.dcp_rank)
    from vllm.v1.attention.backends.mla import sparse_utils

    options = dict(BLOCK_SIZE=metadata.block_size, NUM_TOPK_TOKENS=chosen.shape[1], return_valid_counts=True)
    if impl.dcp_world_size > 1:
        return sparse_utils.triton_filter_and_convert_dcp_index(
            requests, metadata.block_table, chosen, impl.dcp_world_size, impl.dcp_rank,
            metadata.cp_kv_cache_interleave_size, **options)
    return sparse_utils.triton_convert_req_index_to_global_index(requests, metadata.block_table, chosen, **options)


def slots_of_requests(tokens: torch.Tensor, requests: torch.Tensor, block_table: torch.Tensor, size: int,
                      valid: torch.Tensor) -> Slots:
    """The same for a compressed cache of `size` tokens per page; rows that are not valid have no slots."""
    if tokens.device.type == "cpu":
        return _in_pages(tokens, (tokens >= 0) & valid[:, None], requests, block_table, size)
    from vllm.models.deepseek_v4.common.ops import compute_global_topk_indices_and_lens

    return compute_global_topk_indices_and_lens(tokens, requests, block_table, size, valid)


def _on_cpu(chosen: torch.Tensor, requests: torch.Tensor, metadata: Any, ranks: int, rank: int) -> Slots:
    """The same in torch: vLLM's own functions are GPU kernels."""
    size, run = metadata.block_size, metadata.cp_kv_cache_interleave_size
    here = (chosen >= 0) & (chosen // run % ranks == rank)
    token = chosen // (run * ranks) * run + chosen % run
    return _in_pages(token, here, requests, metadata.block_table, size)


def _in_pages(token: torch.Tensor, here: torch.Tensor, requests: torch.Tensor, block_table: torch.Tensor,
              size: int) -> Slots:
    here = here & (token // size < block_table.shape[1])
    return in_pages(token, here, requests[:, None], block_table, size).int(), here.sum(1, dtype=torch.int32)
