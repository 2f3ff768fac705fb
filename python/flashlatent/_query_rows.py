"""Rows of query tokens, those of a request side by side."""

import torch
from torch import Tensor


def cu_seqlens_of(requests: Tensor, batch: int) -> Tensor:
    """int32 (batch + 1): where each request's rows begin. `requests` (rows), ascending, has the request of each row."""
    return torch.searchsorted(requests, torch.arange(batch + 1, dtype=requests.dtype, device=requests.device)).int()
