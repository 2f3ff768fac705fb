"""What ranks send each other: partial outputs and their lse, in one message.

A message is bytes, head by head, so that a rank's heads lie together. Decode writes it and combine() reads it in place:
nothing is packed or unpacked.

    head | out: rows x v_dim elements of 16 bits | lse: batch x s_q fp32 | padding to 16 bytes |
"""

import torch
from torch import Tensor


class Message:
    """The layout. Rows are query tokens: batch * s_q, or `total` of ragged queries."""

    def __init__(self, batch: int, s_q: int, v_dim: int, dtype: torch.dtype, total=None):
        self.batch, self.s_q, self.v_dim, self.dtype, self.total = batch, s_q, v_dim, dtype, total
        self.rows = batch * s_q if total is None else total
        self._lse_begin = -(-self.rows * v_dim * dtype.itemsize // 16) * 16
        # At least some bytes, even for a batch without requests: torch cannot view empty memory as another dtype.
        self.head_bytes = max(self._lse_begin + -(-batch * s_q * 4 // 16) * 16, 16)

    def empty(self, like: Tensor, *extents: int) -> Tensor:
        """Memory of messages of so many heads, the last extent."""
        return like.new_empty((*extents, self.head_bytes), dtype=torch.uint8)

    def out(self, memory: Tensor) -> Tensor:
        """The outputs in memory (..., heads, bytes): (..., batch, s_q, heads, v_dim), or (..., total, heads, v_dim)."""
        rows = self._part(memory, self.dtype, 0, self.rows * self.v_dim)
        if self.total is not None:
            return rows.unflatten(-1, (self.total, self.v_dim)).movedim(-3, -2)
        return rows.unflatten(-1, (self.batch, self.s_q, self.v_dim)).movedim(-4, -2)

    def lse(self, memory: Tensor) -> Tensor:
        """(..., batch, heads, s_q)."""
        return self.flat_lse(memory).unflatten(-1, (self.batch, self.s_q)).movedim(-3, -2)

    def flat_lse(self, memory: Tensor) -> Tensor:
        """(..., heads, batch * s_q)."""
        return self._part(memory, torch.float32, self._lse_begin, self.batch * self.s_q)

    @staticmethod
    def _part(memory, dtype, begin, count):
        elements = memory.view(dtype)
        return elements.narrow(-1, begin // dtype.itemsize, count)
