"""What a call refuses before ranks wait for each other, and (check_inputs=True) whether all ranks make the same call."""

import math
import operator
from typing import Any, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .._errors import ArgumentTypeError, InvalidArgumentError

_DTYPES = ("torch.float16", "torch.bfloat16", "torch.uint8", "torch.float8_e4m3fn")


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """The number as an int; numbers of other packages are accepted, True and False are not."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise InvalidArgumentError(f"{name} is {value!r}; a whole number from {least} to {most} is expected")
    return number


def tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(f"{name} is a {type(value).__name__}; a torch.Tensor is expected")


def cache_of_key_values(key_cache: Any, value_cache: Any) -> None:
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        tensor(name, cache)
    if key_cache.dim() not in (4, 5) or value_cache.dim() != 4:
        raise InvalidArgumentError(f"key_cache has {key_cache.dim()} dimensions and value_cache {value_cache.dim()}; "
                                   "(pages, page_size, h_kv, d) each, or packed ones of 5 and 4, are expected")


def call(q: Any, v_dim: Any, kv_heads: int, flags: dict, options: dict) -> None:
    """Refuses what would fail between two exchanges. The library's own call checks the rest."""
    for name in ("shard", "out", "lse", "empty_lse"):
        if name in options:
            raise InvalidArgumentError(f"{name} is given; ContextParallel sets it itself, leave it out")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ArgumentTypeError(f"{name} is {flag!r}; True or False is expected")
    tensor("q", q)
    begins = options.get("cu_seqlens_q")
    if begins is not None:
        tensor("cu_seqlens_q", begins)
        if begins.dim() != 1 or begins.shape[0] == 0:
            raise InvalidArgumentError(f"cu_seqlens_q is {tuple(begins.shape)}; int32 (batch + 1) is expected")
    if q.dim() != (4 if begins is None else 3):
        raise InvalidArgumentError(f"q is {tuple(q.shape)}; (batch, s_q, h, d) is expected, or with cu_seqlens_q "
                                   "(total tokens, h, d)")
    if options.get("tokens") is not None:
        whole_number("tokens", options["tokens"], 1, 2**20)
    whole_number("v_dim", v_dim, 1, 4096)
    if q.shape[-2] % kv_heads != 0:
        raise InvalidArgumentError(f"q has {q.shape[-2]} heads on this rank; a multiple of key_cache's {kv_heads} KV heads "
                                   "is expected")


class Field(NamedTuple):
    """Something that is the same on all ranks, as a number; NaN: not there, or not a number."""

    name: str
    number: float
    choices: Tuple[str, ...] = ()  # what numbers stand for

    def shown(self, number: float) -> str:
        if math.isnan(number):
            return "none"
        return self.choices[int(number)] if self.choices else f"{number:g}"


def fields_of(run: int, exchange: str, exchanges: Tuple[str, ...], q: Any, v_dim: Any, softmax_scale: Any, flags: dict,
              options: dict) -> list:
    """What ranks compare before they send anything else: always as many fields."""
    shape = list(q.shape) if isinstance(q, Tensor) else []
    shape = [math.nan] * (4 - min(len(shape), 4)) + shape[:4]
    dtype, begins = str(getattr(q, "dtype", "")), options.get("cu_seqlens_q")
    numbers = {"run": run, "v_dim": v_dim, "softmax_scale": softmax_scale, **flags, "tokens": options.get("tokens"),
               "causal": options.get("causal", False), "window": options.get("window", 0),
               "soft_cap": options.get("soft_cap", 0.0),
               "cu_seqlens_q.numel()": begins.numel() if isinstance(begins, Tensor) else None}
    return [*(Field(f"q.shape[{i - 4}]", extent) for i, extent in enumerate(shape)),
            Field("q.dtype", _DTYPES.index(dtype) if dtype in _DTYPES else math.nan, _DTYPES),
            Field("exchange", exchanges.index(exchange), exchanges),
            *(Field(name, float(value) if isinstance(value, (int, float)) else math.nan) for name, value in numbers.items())]


def compare(group, device, found: list, fault: Optional[Exception]) -> None:
    """Raises the rank's own fault, or what differs between ranks. All ranks call it with as many fields."""
    here = torch.tensor([fault is not None, *(field.number for field in found)], dtype=torch.float64, device=device)
    everywhere = _of_all_ranks(group, here)
    if fault is not None:
        raise fault
    me = dist.get_rank(group)
    for rank, (refuses, *_) in enumerate(everywhere):
        if refuses:
            raise InvalidArgumentError(f"rank {rank} refuses the arguments of a call that this rank, {me}, makes, too; the "
                                       "message there says why")
    for rank, (_, *numbers) in enumerate(everywhere):
        for field, number in zip(found, numbers):
            if number == field.number or (math.isnan(number) and math.isnan(field.number)):
                continue
            raise InvalidArgumentError(f"{field.name} is {field.shown(field.number)} on this rank, {me}, and "
                                       f"{field.shown(number)} on rank {rank}; the same on all ranks is expected")


def compare_lengths(group, device, cache_seqlens: Any, batch: int) -> None:
    """Lengths are of whole contexts, and the same everywhere. Others than int32 (batch) are refused, and count as -1 on
    the other ranks, which so refuse the call, too."""
    fits = isinstance(cache_seqlens, Tensor) and cache_seqlens.dtype == torch.int32 and cache_seqlens.shape == (batch,)
    here = cache_seqlens.to(device) if fits else torch.full((batch,), -1, dtype=torch.int32, device=device)
    everywhere = _of_all_ranks(group, here.contiguous())
    if not fits:
        what = (f"{cache_seqlens.dtype} {tuple(cache_seqlens.shape)}" if isinstance(cache_seqlens, Tensor) else
                f"a {type(cache_seqlens).__name__}")
        raise InvalidArgumentError(f"cache_seqlens is {what}; int32 ({batch}) is expected")
    me = dist.get_rank(group)
    for rank, lengths in enumerate(everywhere):
        for request, (own, other) in enumerate(zip(everywhere[me], lengths)):
            if own != other:
                raise InvalidArgumentError(f"cache_seqlens[{request}] is {own} on this rank, {me}, and {other} on rank "
                                           f"{rank}; lengths of whole contexts, the same on all ranks, are expected")


def _of_all_ranks(group, here: Tensor) -> list:
    everywhere = here.new_empty((dist.get_world_size(group), len(here)))
    dist.all_gather_into_tensor(everywhere.view(-1), here, group=group)
    return everywhere.tolist()
