"""What the layers of a step read besides their caches, computed by one launch."""

from typing import Any, Iterable, NamedTuple, Optional, Tuple

from . import _native
from ._arguments import entries, named, shown, whole_number
from ._arrays import empty_like
from ._errors import ArgumentTypeError, InvalidArgumentError

_MOST = 2**31 - 1
_MOST_PAGE_TOKENS = 2**20


class StepCache(NamedTuple):
    """A cache of the step. Its token c stands for the tokens [c * ratio, (c + 1) * ratio) of the context."""

    block_table: Any  # int32 (batch, max_pages)
    page_size: int = 64
    ratio: int = 1
    window: int = 0  # how many newest tokens are given as indices; 0: none


class CacheTokens(NamedTuple):
    """What a step's layers read of one cache. rows: query tokens in all."""

    slots: Any  # (rows): where the cache's token that ends with the query token is stored; -1: there is none
    lengths: Any  # int32 (batch, query_tokens), ragged (rows): tokens that the query token sees
    request_lengths: Any  # int32 (batch): tokens of the request
    indices: Optional[Any] = None  # int32 (batch, query_tokens, window), ragged (rows, window); -1 behind the last


class StepTokens(NamedTuple):
    """What prepare_step() makes."""

    positions: Any  # int32 (batch, query_tokens), ragged (rows); 0 for rows without a query token
    caches: Tuple[CacheTokens, ...]


class StepPlan(NamedTuple):
    """A kind of layer for which Step.prepare() makes a plan: its problem, and the caches that give lengths."""

    problem: Any  # a Problem, equal to that of the layers' calls (Problem.of_arrays)
    cache: int = 0  # sparse: the cache whose lengths are topk_length, clamped to topk; dense layers read cache_seqlens
    extra: Optional[int] = None  # the cache that gives the extra cache's lengths


@named
def prepare_step(cache_seqlens, caches: Iterable[Any], *, query_tokens=1, cu_seqlens_q=None, total_tokens=None,
                 slot_dtype="int64", out=None, stream=None, threads=0) -> StepTokens:
    """Positions of a step's query tokens, and of each cache the slots, lengths and indices of theirs.

    Query tokens are the last tokens of their requests. One at position p sees the first (p + 1) // ratio tokens of a
    cache. On CUDA this is one launch. A graph can capture it; each replay follows the lengths and tables that are then
    in memory.

    cache_seqlens  int32 (batch): cached tokens, the query tokens' own included
    caches         up to 8 StepCache, or tuples of their fields
    query_tokens   of each request
    cu_seqlens_q   int32 (batch + 1), instead: where requests' query tokens begin; total_tokens: rows in all, from
                   cu_seqlens_q's last element on without a query token
    slot_dtype     'int64' or 'int32'
    out            the StepTokens of another call of these shapes, which is written

    Rows without a query token (a request of fewer tokens than query_tokens, ragged padding) have position 0, length 0,
    and slots and indices of -1. Slots are -1, too, for tokens whose page is negative or beyond the table, and indices
    for slots of 2**31 or more. Raises InvalidArgumentError for what does not fit, by name.
    """
    caches = [_checked(f"caches[{number}]", cache) for number, cache in enumerate(entries("caches", StepCache, caches))]
    if not isinstance(slot_dtype, str) or slot_dtype not in ("int32", "int64"):
        raise InvalidArgumentError(f"slot_dtype is {shown(slot_dtype)}; 'int64' and 'int32' are accepted")
    if (cu_seqlens_q is None) != (total_tokens is None):
        raise InvalidArgumentError("cu_seqlens_q and total_tokens go together; "
                                   f"{'total_tokens' if total_tokens is None else 'cu_seqlens_q'} is missing")
    batch = _batch(cache_seqlens)
    query_tokens = whole_number("query_tokens", query_tokens, 1, _MOST // max(batch, 1))
    if cu_seqlens_q is None:
        rows = batch, query_tokens
    elif query_tokens == 1:
        rows = (whole_number("total_tokens", total_tokens, 0, _MOST),)
    else:
        raise InvalidArgumentError(f"query_tokens is {query_tokens} and cu_seqlens_q is given; one of them is expected")
    if out is None:
        out = _make(cache_seqlens, caches, batch, rows, slot_dtype)
    made = _caches_of(out, caches)
    written = [(cache.block_table, cache.page_size, cache.ratio, *tokens) for cache, tokens in zip(caches, made)]
    _native.prepare_step_into(cache_seqlens, written, tokens=rows[-1], cu_seqlens_q=cu_seqlens_q,
                              positions=out.positions, stream=stream, threads=threads)
    return out


def _checked(name, cache):
    return StepCache(cache.block_table, whole_number(f"{name}.page_size", cache.page_size, 1, _MOST_PAGE_TOKENS),
                     whole_number(f"{name}.ratio", cache.ratio, 1, _MOST),
                     whole_number(f"{name}.window", cache.window, 0, _MOST))


def _batch(cache_seqlens):
    shape = getattr(cache_seqlens, "shape", None)
    if isinstance(shape, tuple) and len(shape) == 1:
        return shape[0]
    _native.prepare_step_into(cache_seqlens, [])  # refuses what is no array of one dimension
    raise ArgumentTypeError(f"cache_seqlens is {shown(cache_seqlens)}; an array with a shape is expected")


def _caches_of(out, caches):
    """The CacheTokens of `out`, which are as these caches ask for."""
    if not isinstance(out, StepTokens):
        raise ArgumentTypeError(f"out is {shown(out)}; a StepTokens is expected")
    made = entries("out.caches", CacheTokens, out.caches)
    if len(made) != len(caches):
        raise InvalidArgumentError(f"out has {len(made)} caches and caches {len(caches)}; as many are expected")
    for number, (cache, tokens) in enumerate(zip(caches, made)):
        shape = getattr(tokens.indices, "shape", (cache.window,))
        if tuple(shape[-1:]) != (cache.window,):
            raise InvalidArgumentError(f"out.caches[{number}].indices has the shape {tuple(shape)} and "
                                       f"caches[{number}].window is {cache.window}; so many columns are expected")
    return made


def _make(like, caches, batch, rows, slot_dtype):
    """Uninitialised results."""
    count = rows[0] if len(rows) == 1 else rows[0] * rows[1]
    return StepTokens(
        empty_like(like, rows, "int32"),
        tuple(CacheTokens(empty_like(like, (count,), slot_dtype), empty_like(like, rows, "int32"),
                          empty_like(like, (batch,), "int32"),
                          empty_like(like, (*rows, cache.window), "int32") if cache.window else None)
              for cache in caches))


@named
def prepare(self, cache_seqlens, caches: Iterable[Any], *, plans=(), query_tokens=1, cu_seqlens_q=None,
            total_tokens=None, slot_dtype="int64", out=None, stream=None, threads=0) -> StepTokens:
    """prepare_step(), and the plans of the step's kinds of layers: what an engine does once a step, in one call.

    plans  StepPlan, or tuples of its fields: (problem, cache, extra). A dense layer's plan is made for cache_seqlens, a
           sparse one's for the lengths of `cache` (ragged: for topk), an extra cache's for those of `extra`. Another
           launch each; decode() then plans no more
    Other arguments are those of prepare_step(). Not of a stateless Step, whose callers bring plans.
    """
    caches = entries("caches", StepCache, caches)
    plans = [_checked_plan(f"plans[{number}]", plan, len(caches))
             for number, plan in enumerate(entries("plans", StepPlan, plans))]
    tokens = prepare_step(cache_seqlens, caches, query_tokens=query_tokens, cu_seqlens_q=cu_seqlens_q,
                          total_tokens=total_tokens, slot_dtype=slot_dtype, out=out, stream=stream, threads=threads)
    ragged = cu_seqlens_q is not None
    for problem, cache, extra in plans:
        indexed = problem.topk is not None
        lengths = _plan_lengths(tokens.caches[cache], True, ragged) if indexed else cache_seqlens
        extra_lengths = None if extra is None else _plan_lengths(tokens.caches[extra], problem.extra_topk is not None,
                                                                 ragged)
        self._schedule(problem, lengths, extra_lengths=extra_lengths, cu_seqlens_q=cu_seqlens_q, like=cache_seqlens,
                       stream=stream)
    return tokens


def _checked_plan(name, plan, caches):
    """`caches`: how many there are."""
    if not isinstance(plan.problem, _native.Problem):
        raise ArgumentTypeError(f"{name}.problem is {shown(plan.problem)}; a Problem is expected")
    numbers = {"cache": plan.cache if plan.problem.topk is not None else None, "extra": plan.extra}
    for field, number in numbers.items():
        if caches == 0 and number is not None:
            raise InvalidArgumentError(f"{name}.{field} is {shown(number)} and there are no caches")
        if number is not None or (field == "cache" and plan.problem.topk is not None):
            whole_number(f"{name}.{field}", number, 0, caches - 1)
    return plan


def _plan_lengths(tokens, indexed, ragged):
    """The lengths of a list: of query tokens; if ragged, of requests, and then none for lists of indices."""
    if not ragged:
        return tokens.lengths
    return None if indexed else tokens.request_lengths


_native.Step.prepare = prepare
