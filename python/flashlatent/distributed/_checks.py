"""What a call refuses before ranks wait for each other, and (check_inputs=True) whether all ranks make the same call."""

import math
import numbers
import operator
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .._arguments import whole_number
from .._errors import ArgumentTypeError, FlashLatentError, InvalidArgumentError
from .._native import _checks_every_call

_DTYPES = tuple(f"torch.{name}" for name in ("float16", "bfloat16", "uint8", "float8_e4m3fn", "int8", "int16", "int32", "int64",
                                             "float32", "float64", "bool"))
_DEVICES = ("cpu", "cuda", "another")
CALLS = ("ContextParallel", "plan", "plan_kv", "decode", "decode_kv")
_NAMED_BY = ("block_table", "indices")
_TEXT_BYTES = 1024  # of a refusal, as other ranks hear of it


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} is {value!r}; True or False is expected")


def tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(f"{name} is a {type(value).__name__}; a torch.Tensor is expected")


def cache_of_key_values(key_cache: Any, value_cache: Any) -> None:
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        tensor(name, cache)
    if key_cache.dim() not in (4, 5) or value_cache.dim() != 4:
        raise InvalidArgumentError(f"key_cache has {key_cache.dim()} dimensions and value_cache {value_cache.dim()}; "
                                   "(pages, page_size, h_kv, d) each, or packed ones of 5 and 4, are expected")
    heads, _ = dims_of_key_values(key_cache, value_cache)
    if heads == 0:
        raise InvalidArgumentError(f"key_cache is {tuple(key_cache.shape)}; one KV head or more is expected")


def dims_of_key_values(key_cache: Any, value_cache: Any) -> Tuple[Optional[int], Optional[int]]:
    """(KV heads, v_dim) of a cache, separate or packed; None where cache_of_key_values() refuses it."""
    if not isinstance(key_cache, Tensor) or not isinstance(value_cache, Tensor) or value_cache.dim() != 4:
        return None, None
    if key_cache.dim() not in (4, 5):
        return None, None
    return (key_cache.shape[2], value_cache.shape[3]) if key_cache.dim() == 4 else (key_cache.shape[1], value_cache.shape[2])


def call(q: Any, v_dim: Any, kv_heads: int, flags: dict, options: dict) -> None:
    """Refuses what would fail between two exchanges. The library's own call checks the rest."""
    for name in ("shard", "out", "lse", "empty_lse"):
        if name in options:
            raise InvalidArgumentError(f"{name} is given; ContextParallel sets it itself, leave it out")
    if options.get("q_rope") is not None:
        raise InvalidArgumentError("q_rope is given, and ranks exchange queries as one tensor; q with all columns is expected")
    for name, value in flags.items():
        flag(name, value)
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


def _captures() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def environment_checks() -> bool:
    """Does FLASHLATENT_CHECK_INPUTS ask for checks of this call? Calls that a CUDA graph captures are left out."""
    return _checks_every_call() and not _captures()


def no_capture() -> None:
    if _captures():
        raise InvalidArgumentError("check_inputs is True, and the stream is captured into a CUDA graph, where no call can wait; "
                                   "False is accepted there")


def integers_and_sink(q: Tensor, cache_seqlens: Any, attn_sink: Any, options: dict) -> None:
    """Refuses lengths that ranks cannot compare, a q that they cannot send, and a sink that the merge would refuse."""
    if q.layout != torch.strided or str(q.dtype) not in _DTYPES:
        raise InvalidArgumentError(f"q is {q.dtype} of layout {q.layout}; fp16, bf16 and e4m3 of layout torch.strided are "
                                   "accepted")
    if options.get("indices") is None:
        _int32("cache_seqlens", cache_seqlens, _batch(q, options))
    if options.get("cu_seqlens_q") is not None:
        _int32("cu_seqlens_q", options["cu_seqlens_q"], options["cu_seqlens_q"].shape[0])
    if attn_sink is None:
        return
    tensor("attn_sink", attn_sink)
    heads = q.shape[-2]
    fits = attn_sink.dtype == torch.float32 and attn_sink.shape == (heads,) and attn_sink.layout == torch.strided
    if not fits or attn_sink.device != q.device or (heads > 1 and attn_sink.stride(0) != 1):
        raise InvalidArgumentError(f"attn_sink is {attn_sink.dtype} {tuple(attn_sink.shape)} on {attn_sink.device}; contiguous "
                                   f"fp32 ({heads}) on {q.device} is expected")


def _int32(name: str, value: Any, extent: int) -> None:
    tensor(name, value)
    if value.dtype != torch.int32 or value.shape != (extent,) or value.device.type not in _DEVICES:
        raise InvalidArgumentError(f"{name} is {value.dtype} {tuple(value.shape)} on {value.device}; int32 ({extent}) is "
                                   "expected")


def _batch(q: Tensor, options: dict) -> int:
    begins = options.get("cu_seqlens_q")
    return q.shape[0] if begins is None else begins.shape[0] - 1


class Field(NamedTuple):
    """Something that is the same on all ranks, as a number; NaN: absent, or not a number."""

    name: str
    number: float
    choices: Tuple[str, ...] = ()  # what the numbers stand for

    def shown(self, number: float) -> str:
        if math.isnan(number):
            return "none"
        return self.choices[int(number)] if self.choices else f"{number:g}"


def _number(value: Any) -> float:
    """NaN for what is no number; reads no tensor, which may be on a GPU."""
    try:
        if isinstance(value, numbers.Real):
            return float(value)
        return math.nan if isinstance(value, Tensor) else float(operator.index(value))
    except OverflowError:
        return math.inf
    except TypeError:
        return math.nan


def _choice(name: str, value: Any, choices: Tuple[str, ...]) -> Field:
    return Field(name, choices.index(value) if value in choices else math.nan, choices)


def fields_of(name: str, exchange: Any, exchanges: Tuple[str, ...], numbers_of: dict, q: Any = None,
              options: Optional[dict] = None) -> list:
    """What ranks compare before they send anything else: as many fields for every call, and no error for any argument."""
    options = options or {}
    shape = list(q.shape) if isinstance(q, Tensor) else []
    shape = [math.nan] * (4 - min(len(shape), 4)) + shape[:4]
    begins, device = options.get("cu_seqlens_q"), getattr(getattr(q, "device", None), "type", None)
    given = {"run": None, "max_rows": None, "v_dim": None, "softmax_scale": None, "all_heads": None, "overlap": None,
             "check_inputs": None, "KV heads": None, **numbers_of, "tokens": options.get("tokens"),
             "causal": options.get("causal", False), "window": options.get("window", 0),
             "soft_cap": options.get("soft_cap", 0.0),
             "cu_seqlens_q.numel()": begins.numel() if isinstance(begins, Tensor) else None}
    return [_choice("the call", name, CALLS),
            *(Field(f"q.shape[{i - 4}]", extent) for i, extent in enumerate(shape)),
            _choice("q.dtype", str(getattr(q, "dtype", "")), _DTYPES),
            _choice("q.device.type", device if device in (*_DEVICES, None) else "another", _DEVICES),
            _choice("exchange", exchange if isinstance(exchange, str) else "", exchanges),
            Field("what names tokens", float(options.get("indices") is not None), _NAMED_BY),
            *(Field(name, _number(value)) for name, value in given.items())]


class Agreement:
    """Ranks go on together or not at all: if one rank is refused, all ranks raise.

    All ranks call an Agreement's methods alike. Each call is a small exchange that the caller waits for; if a rank is
    refused, another exchange sends its reason.
    """

    def __init__(self, group: Any, device: torch.device):
        self._group, self._device = group, device
        self._me = dist.get_rank(group)

    def after(self, local: Callable[[], Any], fields: Sequence[Field] = ()) -> Any:
        """Calls `local` and returns its result, if it has failed on no rank and the fields are the same on all
        ranks."""
        result, fault = None, None
        try:
            result = local()
        except Exception as error:  # whatever it is, the other ranks must not wait
            fault = error
        everywhere = self._of_all_ranks([fault is not None, *(field.number for field in fields)], torch.float64)
        refused = [rank for rank, (refuses, *_) in enumerate(everywhere) if refuses]
        if refused:
            self._raise_refusal(refused, fault)
        self._compare_fields(fields, [found for _, *found in everywhere])
        return result

    def compare_integers(self, q: Tensor, cache_seqlens: Any, options: dict) -> None:
        """Lengths are of whole contexts, and the same everywhere, and so is cu_seqlens_q."""
        given = {"cache_seqlens": cache_seqlens if options.get("indices") is None else None,
                 "cu_seqlens_q": options.get("cu_seqlens_q")}
        given = {name: value for name, value in given.items() if value is not None}
        if not given:
            return
        everywhere = self._of_all_ranks(torch.cat([value.to(self._device) for value in given.values()]).tolist(), torch.int32)
        places = [(name, i) for name, value in given.items() for i in range(len(value))]
        for rank, found in enumerate(everywhere):
            for (name, i), own, other in zip(places, everywhere[self._me], found):
                if own != other:
                    what = "lengths of whole contexts, " if name == "cache_seqlens" else ""
                    raise InvalidArgumentError(f"{name}[{i}] is {own} on this rank, {self._me}, and {other} on rank {rank}; "
                                               f"{what}the same on all ranks, are expected")

    def _raise_refusal(self, refused: list, fault: Optional[Exception]) -> None:
        text = "" if fault is None else f"{fault}" or type(fault).__name__
        everywhere = self._of_all_ranks(list(text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")), torch.uint8)
        if isinstance(fault, FlashLatentError):
            fault.args = (f"rank {self._me} is refused: {fault}",)
        if fault is not None:
            raise fault
        why = bytes(everywhere[refused[0]]).rstrip(b"\0").decode(errors="replace")
        raise InvalidArgumentError(f"rank {refused[0]} is refused, and so this rank, {self._me}, which makes the same call: {why}")

    def _compare_fields(self, fields: Sequence[Field], everywhere: list) -> None:
        for rank, found in enumerate(everywhere):
            for field, number in zip(fields, found):
                if number == field.number or (math.isnan(number) and math.isnan(field.number)):
                    continue
                raise InvalidArgumentError(f"{field.name} is {field.shown(field.number)} on this rank, {self._me}, and "
                                           f"{field.shown(number)} on rank {rank}; the same on all ranks is expected")

    def _of_all_ranks(self, values: list, dtype: torch.dtype) -> list:
        here = torch.tensor(values, dtype=dtype, device=self._device)
        everywhere = here.new_empty((dist.get_world_size(self._group), len(here)))
        dist.all_gather_into_tensor(everywhere.view(-1), here, group=self._group)
        return everywhere.tolist()
