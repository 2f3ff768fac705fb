"""Which rank holds a token of a context, and where."""

from typing import NamedTuple, Tuple

import torch
from torch import Tensor


class Interleaving(NamedTuple):
    """Runs of `run` tokens go to the ranks in turns: the token in place p of its context is rank p // run % world's,
    and that rank's token number p // (run * world) * run + p % run of the context.

    Methods take integers or integer tensors, work on the tensor's device and can be captured in a CUDA graph.
    """

    rank: int
    world: int
    run: int = 1

    def rank_of(self, positions):
        return positions // self.run % self.world

    def slot_of(self, positions):
        """A token's number among those of its rank."""
        return positions // (self.run * self.world) * self.run + positions % self.run

    def position_of(self, slots):
        """The place in its context of this rank's token of that number."""
        return slots // self.run * self.run * self.world + self.rank * self.run + slots % self.run

    def local_lengths(self, lengths):
        """How many tokens of contexts of these lengths the rank holds: what its page tables need room for."""
        whole = self.run * self.world
        rest = lengths % whole - self.rank * self.run
        rest = rest.clamp(0, self.run) if isinstance(rest, Tensor) else min(max(rest, 0), self.run)
        return lengths // whole * self.run + rest

    def slot_mapping(self, positions: Tensor, requests: Tensor, block_table: Tensor, page_size: int) -> Tensor:
        """slot_mapping for append_latent() and append_kv(): where new tokens go, -1 for those of other ranks.

        positions    int32 or int64 (n): places in the contexts
        requests     (n): each token's row of block_table
        block_table  int32 (batch, max_pages): the rank's own pages
        """
        slots = self.slot_of(positions).long()
        own = self.rank_of(positions) == self.rank
        columns = torch.where(own, slots // page_size, 0)
        pages = block_table[requests.long(), columns].long()
        return torch.where(own, pages * page_size + slots % page_size, -1)

    def local_indices(self, positions: Tensor, block_table: Tensor, page_size: int) -> Tuple[Tensor, Tensor]:
        """(indices, topk_length) of sparse decode for tokens named by their places in the contexts.

        positions    int32 (batch, s_q, topk), negative: skipped
        block_table  int32 (batch, max_pages): the rank's own pages
        Each query token's own tokens come first, -1 after them; topk_length is the most that a request's have.
        """
        batch, _, topk = positions.shape
        own = (positions >= 0) & (self.rank_of(positions) == self.rank)
        slots = torch.where(own, self.slot_of(positions), 0).long()
        pages = block_table.long().gather(1, (slots // page_size).reshape(batch, -1)).view(slots.shape)
        indices = torch.where(own, pages * page_size + slots % page_size, -1).to(torch.int32)
        order = torch.sort(own.to(torch.int8), dim=-1, descending=True, stable=True).indices
        return indices.gather(-1, order), own.sum(-1).amax(-1).to(torch.int32)


def token_places(cu_seqlens_q: Tensor, total: int, s_q: int, batch: int) -> Tensor:
    """Of ragged queries: where each of `total` query tokens is among (batch, s_q)."""
    tokens = torch.arange(total, device=cu_seqlens_q.device)
    requests = torch.searchsorted(cu_seqlens_q[1:].long(), tokens, right=True).clamp(max=max(batch - 1, 0))
    return requests * s_q + tokens - cu_seqlens_q.long()[requests]
