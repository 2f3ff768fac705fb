"""How messages get from rank to rank: three ways, each of which ends in a merge by combine()."""

import math
from typing import Callable, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _native
from .._errors import InvalidArgumentError
from ._message import Message
from ._tokens import token_places

AUTO = ((math.inf, "all_to_all"),)
"""What 'auto' takes: a row has the largest message in bytes, all heads together, and its way.

By bench/results/h100/distributed_nccl.json: of 24 shapes on 2 and 4 GPUs, messages of 16 KiB to 4 MiB, all_gather was
faster in two, by less than 1 us, and up to 51 us slower in the others. So there is one row."""


def chosen(exchange: str, message_bytes: int) -> str:
    """The way that a message goes."""
    if exchange != "auto":
        return exchange
    return next(way for most, way in AUTO if message_bytes <= most)


class Arrived:
    """Messages of all ranks with this rank's heads, (world, heads, bytes), complete when `work` is done."""

    def __init__(self, memory: Tensor, work, kept: Tensor):
        self._memory, self._work, self._kept = memory, work, kept  # kept: what is being sent

    def wait(self) -> Tensor:
        if self._work is not None:
            self._work.wait()
        return self._memory


# Each way allocates at once, and returns the exchange as a function: what can fail on one rank comes before ranks wait.


def by_all_to_all(sent: Tensor, group, overlap: bool) -> Callable[[], Arrived]:
    world = dist.get_world_size(group)
    received = torch.empty_like(sent)

    def exchange():
        work = dist.all_to_all_single(received.view(-1), sent.view(-1), group=group, async_op=overlap)
        return Arrived(received.unflatten(0, (world, -1)), work, sent)

    return exchange


def by_all_gather(sent: Tensor, group, overlap: bool, heads: slice) -> Callable[[], Arrived]:
    world = dist.get_world_size(group)
    received = sent.new_empty((world, *sent.shape))

    def exchange():
        work = dist.all_gather_into_tensor(received.view(-1), sent.view(-1), group=group, async_op=overlap)
        return Arrived(received[:, heads], work, sent)

    return exchange


def merge(message: Message, received: Tensor, like: Tensor, attn_sink: Optional[Tensor],
          cu_seqlens_q: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    """(out, lse) of messages (ranks, heads, bytes), by one combine()."""
    heads = received.shape[1]
    partial_out = message.out(received)
    if cu_seqlens_q is None:
        out = like.new_empty((message.batch, message.s_q, heads, message.v_dim), dtype=message.dtype)
        return _native.combine(partial_out, message.lse(received), attn_sink=attn_sink, out=out)
    # combine() has one lse for each place of (batch, s_q), also for ragged query tokens.
    places = token_places(cu_seqlens_q, message.total, message.s_q, message.batch)
    partial_lse = message.flat_lse(received).index_select(-1, places).movedim(-2, -1).unsqueeze(-1)
    out = like.new_empty((message.total, heads, message.v_dim), dtype=message.dtype)
    _, lse = _native.combine(partial_out.unsqueeze(2), partial_lse, attn_sink=attn_sink, out=out.unsqueeze(1))
    all_lse = torch.full((heads, message.batch * message.s_q), -torch.inf, device=like.device)
    all_lse.index_copy_(1, places, lse.squeeze(-1).t())
    return out, all_lse.view(heads, message.batch, message.s_q).movedim(0, 1)


ROPE_DIM = 64
"""Queries may have so many more elements than outputs."""


class PeerMemory:
    """Memory of every rank, to which the other ranks write, by torch's symmetric memory. The launch that sends also
    lays out queries or merges results. It does not need NVLink multicast.

    It is allocated once: for max_rows rows of 512 elements, 3,072 bytes per row for each other rank."""

    def __init__(self, group, device: torch.device, max_rows: int, v_dim: int):
        """This rank's memory; meet() makes it known."""
        from torch.distributed import _symmetric_memory as symmetric

        self.rank, self.world, self.device = dist.get_rank(group), dist.get_world_size(group), device
        self.bytes = max(_native.exchange_bytes(max_rows, v_dim, self.world),
                         _native.exchange_gather_bytes(max_rows, v_dim + ROPE_DIM, self.world))
        self._memory = symmetric.empty(self.bytes, dtype=torch.uint8, device=device)
        self._memory.zero_()
        self._group, self._rendezvous = group, symmetric.rendezvous

    def meet(self) -> None:
        """Waits for all ranks' memories."""
        handle = self._rendezvous(self._memory, self._group.group_name)
        self._handle, self._addresses = handle, list(handle.buffer_ptrs)
        torch.cuda.synchronize(self.device)
        dist.barrier(self._group)  # all memories are zero

    def has_room_for(self, q: Tensor) -> bool:
        """Can gather() take these queries? Only what is the same on all ranks decides, so all take the same way."""
        if q.dim() != 4 or q.element_size() > 2:
            return False
        rows, halves = q.shape[:3].numel(), -(-q.shape[3] * q.element_size() // 2)
        return _native.exchange_gather_bytes(rows, halves, self.world) <= self.bytes

    def gathering(self, q: Tensor) -> Callable[[], Tensor]:
        """The exchange that returns the queries of all ranks' heads, (batch, s_q, world * h, d)."""
        self._expect_here("q", q)
        batch, s_q, heads, d = q.shape
        q = q if q.stride(-1) == 1 else q.contiguous()
        gathered = q.new_empty((batch, s_q, self.world * heads, d))
        as_bytes = (lambda x: x.view(torch.uint8)) if q.element_size() == 1 else (lambda x: x)

        def exchange():
            _native.exchange_gather(as_bytes(q), rank=self.rank, memory=self._addresses, bytes=self.bytes,
                                    gathered=as_bytes(gathered))
            return gathered

        return exchange

    def merging(self, message: Message, sent: Tensor, attn_sink: Optional[Tensor],
                heads: int) -> Callable[[], Tuple[Tensor, Tensor]]:
        """The exchange that returns (out, lse) of this rank's heads."""
        self._expect_here("q", sent)
        if message.total is not None:
            raise InvalidArgumentError("cu_seqlens_q is given and exchange is 'one_sided', which has no ragged queries; "
                                       "'all_to_all' is accepted")
        partial_out = message.out(sent)
        out = torch.empty((message.batch, message.s_q, heads, message.v_dim), dtype=message.dtype, device=sent.device)
        lse = torch.empty((message.batch, heads, message.s_q), dtype=torch.float32, device=sent.device)
        return lambda: _native.exchange_combine(partial_out, message.lse(sent), rank=self.rank, memory=self._addresses,
                                                bytes=self.bytes, attn_sink=attn_sink, out=out, lse=lse)

    def _expect_here(self, name: str, given: Tensor) -> None:
        if given.device != self.device:
            raise InvalidArgumentError(f"{name} is on {given.device}, and exchange is 'one_sided' by memory of {self.device}; "
                                       f"{self.device} is expected")
