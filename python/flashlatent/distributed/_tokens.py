"""Which rank holds a token of a context, and where."""

from typing import Any, NamedTuple, Tuple

import torch
from torch import Tensor

from .._errors import InvalidArgumentError
from .._slots import check_integers, check_page_size, in_pages


class Interleaving(NamedTuple):
    """Runs of `run` tokens are dealt to the ranks round-robin: the token in place p of its context is held by rank p //
    run % world, as that rank's token number p // (run * world) * run + p % run of the context.

    Methods take integers or integer tensors, work on the tensor's device and can be captured in a CUDA graph. A
    negative position or number names no token; results for it are -1.
    """

    rank: int
    world: int
    run: int = 1

    def rank_of(self, positions: Any) -> Any:
        """The rank that holds the token in this place of its context; -1 for a negative place."""
        return _unless_negative(positions, positions // self.run % self.world)

    def slot_of(self, positions: Any) -> Any:
        """A token's number among those of its rank; -1 for a negative place."""
        return _unless_negative(positions, positions // (self.run * self.world) * self.run + positions % self.run)

    def position_of(self, slots: Any) -> Any:
        """The place in its context of this rank's token of that number; -1 for a negative number."""
        return _unless_negative(slots, slots // self.run * self.run * self.world + self.rank * self.run +
                                slots % self.run)

    def local_lengths(self, lengths: Any) -> Any:
        """How many tokens the rank holds of contexts of these lengths: its page tables need room for as many. A length
        below 0 counts as 0."""
        lengths = lengths.clamp(min=0) if isinstance(lengths, Tensor) else max(lengths, 0)
        whole = self.run * self.world
        rest = lengths % whole - self.rank * self.run
        rest = rest.clamp(0, self.run) if isinstance(rest, Tensor) else min(max(rest, 0), self.run)
        return lengths // whole * self.run + rest

    def slot_mapping(self, positions: Tensor, requests: Tensor, block_table: Tensor, page_size: int) -> Tensor:
        """slot_mapping for append_latent() and append_kv(): int64 (n), the slots of new tokens; -1 for tokens of other
        ranks and for padding.

        positions    int32 or int64 (n): places in the contexts; negative: padding
        requests     integers (n): each token's row of block_table; of padding, any
        block_table  int32 (batch, max_pages): the rank's own pages; negative: no page, its tokens get -1
        page_size    tokens per page
        Raises InvalidArgumentError for tensors that don't fit and, on the CPU, for an own token whose position is past
        the page table or whose request is none of its rows; on a GPU such a token gets -1.
        """
        page_size = check_page_size(page_size)
        check_integers("positions", positions, ("n",))
        check_integers("requests", requests, ("n",), positions.device)
        check_integers("block_table", block_table, ("batch", "max_pages"), positions.device)
        if len(positions) != len(requests):
            raise InvalidArgumentError(f"requests has {len(requests)} entries and positions {len(positions)}; as many "
                                       "are expected")
        positions, own = positions.long(), self._is_own(positions)
        slots = self.slot_of(positions)
        if _can_look_at(positions):
            self._check_new_tokens(positions, slots, requests, own, block_table.shape, page_size)
        return in_pages(slots, own, requests, block_table, page_size)

    def local_indices(self, positions: Tensor, block_table: Tensor, page_size: int) -> Tuple[Tensor, Tensor]:
        """(indices, topk_length) of sparse decode for tokens named by their places in the contexts.

        positions    int32 (batch, s_q, topk); negative, or past the page table: skipped
        block_table  int32 (batch, max_pages): the rank's own pages; negative: no page, its tokens are skipped
        page_size    tokens per page
        Returns int32 (batch, s_q, topk) and int32 (batch). For each query token the rank's tokens come first, then -1;
        topk_length is the most that a query token of the request has. Raises InvalidArgumentError for tensors that
        don't fit. A slot beyond int32, which no index can name, is refused on the CPU and skipped on a GPU.
        """
        page_size = check_page_size(page_size)
        check_integers("positions", positions, ("batch", "s_q", "topk"))
        check_integers("block_table", block_table, ("batch", "max_pages"), positions.device)
        batch, s_q, topk = positions.shape
        if len(block_table) != batch:
            raise InvalidArgumentError(f"block_table has {len(block_table)} rows and positions {batch}; as many are "
                                       "expected")
        positions = positions.long()
        rows = torch.arange(batch, device=positions.device)[:, None, None].expand(positions.shape)
        slots = in_pages(self.slot_of(positions), self._is_own(positions), rows, block_table, page_size)
        far = slots >= 2**31
        if _can_look_at(positions) and far.any():
            at = tuple(far.nonzero()[0].tolist())
            raise InvalidArgumentError(f"positions[{', '.join(map(str, at))}] is {int(positions[at])}, whose slot is "
                                       f"{int(slots[at])}; indices are int32: slots below {2**31} are accepted")
        own = (slots >= 0) & ~far
        if s_q == 0 or topk == 0:
            return slots.to(torch.int32), torch.zeros(batch, dtype=torch.int32, device=positions.device)
        order = torch.sort(own.to(torch.int8), dim=-1, descending=True, stable=True).indices
        indices = torch.where(own, slots, -1).to(torch.int32)
        return indices.gather(-1, order), own.sum(-1).amax(-1).to(torch.int32)

    def _is_own(self, positions: Tensor) -> Tensor:
        return self.rank_of(positions) == self.rank

    def _check_new_tokens(self, positions: Tensor, slots: Tensor, requests: Tensor, own: Tensor,
                          shape: torch.Size, page_size: int) -> None:
        """Raises for the first token of this rank that has no place in a page table of this shape."""
        batch, max_pages = shape
        strange = own & ((requests < 0) | (requests >= batch))
        if strange.any():
            at = int(strange.nonzero()[0])
            raise InvalidArgumentError(f"requests[{at}] is {int(requests[at])}; rows of block_table, 0 to {batch - 1}, "
                                       "are accepted")
        far = own & (slots >= max_pages * page_size)
        if far.any():
            at = int(far.nonzero()[0])
            raise InvalidArgumentError(f"positions[{at}] is {int(positions[at])}, token {int(slots[at])} of this rank; "
                                       f"block_table has {max_pages} pages of {page_size} tokens")


def _can_look_at(tensor: Tensor) -> bool:
    """Can the tensor's values be read without waiting, and outside of a trace?"""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _unless_negative(given: Any, result: Any) -> Any:
    """-1 where what was given is negative."""
    if isinstance(given, Tensor):
        return torch.where(given < 0, -1, result)
    return -1 if given < 0 else result


def token_places(cu_seqlens_q: Tensor, total: int, s_q: int, batch: int) -> Tensor:
    """Where each of `total` query tokens of ragged queries is among (batch, s_q)."""
    tokens = torch.arange(total, device=cu_seqlens_q.device)
    requests = torch.searchsorted(cu_seqlens_q[1:].long(), tokens, right=True).clamp(max=max(batch - 1, 0))
    return requests * s_q + tokens - cu_seqlens_q.long()[requests]
