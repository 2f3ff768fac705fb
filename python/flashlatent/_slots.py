"""Places of tokens in a paged cache, page * page_size + offset, from places among a request's tokens (torch)."""

import operator
from typing import Any, Tuple

import torch
from torch import Tensor

from ._arguments import shown
from ._errors import InvalidArgumentError


def in_pages(tokens: Tensor, wanted: Tensor, requests: Tensor, block_table: Tensor, page_size: int) -> Tensor:
    """int64, of tokens' shape: the slots of tokens that are `wanted` and have a page, -1 of all others.

    tokens       (...): a token's number among those of its request
    wanted       bool (...); what the other arrays say of a token that is not does not matter
    requests     integers that broadcast to (...): its row of block_table
    block_table  (batch, max_pages); negative: no page
    """
    batch, max_pages = block_table.shape
    tokens = tokens.long()
    if batch == 0 or max_pages == 0:
        return torch.full_like(tokens, -1)
    requests = requests.long()
    columns = torch.div(tokens, page_size, rounding_mode="floor")
    has_page = wanted & (columns >= 0) & (columns < max_pages) & (requests >= 0) & (requests < batch)
    pages = block_table[torch.where(has_page, requests, 0), torch.where(has_page, columns, 0)].long()
    return torch.where(has_page & (pages >= 0), pages * page_size + tokens % page_size, -1)


def check_page_size(page_size: Any) -> int:
    """The tokens per page, as an int."""
    try:
        number = 0 if isinstance(page_size, bool) else operator.index(page_size)
    except TypeError:
        number = 0
    if not 1 <= number <= 1 << 20:
        raise InvalidArgumentError(f"page_size is {shown(page_size)}; 1 to {1 << 20} is expected")
    return number


def check_integers(name: str, tensor: Any, dimensions: Tuple[str, ...], device: Any = None) -> None:
    """Raises for what is no tensor of integers with these dimensions (on `device`). A tensor without elements may have
    any dtype."""
    if not isinstance(tensor, Tensor):
        raise InvalidArgumentError(f"{name} is {shown(tensor)}; a tensor of integers is expected")
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if tensor.dim() != len(dimensions) or not (whole or tensor.numel() == 0):
        raise InvalidArgumentError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; integers "
                                   f"({', '.join(dimensions)}) are expected")
    if device is not None and tensor.device != device:
        raise InvalidArgumentError(f"{name} is on {tensor.device}; {device}, where the others are, is expected")
