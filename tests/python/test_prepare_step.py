"""prepare_step() and Step.prepare() beside their definition, token by token."""

import numpy as np
import pytest

import flashlatent
from flashlatent import StepCache, StepPlan, StepTokens


def expected(lengths, begins, cache, window):
    """(positions, slots, lengths, indices) of rows; `begins`: where each request's query tokens begin."""
    rows = begins[-1]
    positions, slots, seen = np.zeros(rows, int), np.full(rows, -1), np.zeros(rows, int)
    indices = np.full((rows, window), -1)

    def slot(request, token):
        page = token // cache.page_size
        if page >= cache.block_table.shape[1] or cache.block_table[request, page] < 0:
            return -1
        return int(cache.block_table[request, page]) * cache.page_size + token % cache.page_size

    for request, length in enumerate(lengths):
        for row in range(begins[request], begins[request + 1]):
            position = length - (begins[request + 1] - row)
            if position < 0:
                continue
            positions[row], seen[row] = position, (position + 1) // cache.ratio
            if (position + 1) % cache.ratio == 0:
                slots[row] = slot(request, seen[row] - 1)
            newest = range(max(seen[row] - window, 0), seen[row])
            indices[row, :len(newest)] = [slot(request, token) for token in newest]
    return positions, slots, seen, indices


def caches_of(random, batch):
    """Tables with pages that are none, and that end before some requests do."""
    def cache(columns, page_size, ratio, window):
        return StepCache(random.integers(-1, 1000, (batch, columns)).astype(np.int32), page_size, ratio, window)

    return [cache(10, 64, 1, 128), cache(40, 2, 4, 0), cache(3, 7, 128, 5), cache(0, 64, 1, 3)]


def check(tokens, lengths, begins, caches):
    for cache, made in zip(caches, tokens.caches):
        positions, slots, seen, indices = expected(lengths, begins, cache, cache.window)
        np.testing.assert_array_equal(np.ravel(tokens.positions), positions)
        np.testing.assert_array_equal(made.slots, slots)
        np.testing.assert_array_equal(np.ravel(made.lengths), seen)
        np.testing.assert_array_equal(made.request_lengths, np.maximum(lengths, 0) // cache.ratio)
        if cache.window == 0:
            assert made.indices is None
        else:
            np.testing.assert_array_equal(np.reshape(made.indices, indices.shape), indices)


LENGTHS = np.array([0, 1, 2, 3, 4, 127, 128, 129, 500, 640, 700, -3], np.int32)


@pytest.mark.parametrize("query_tokens", [1, 2, 5])
@pytest.mark.parametrize("slot_dtype", ["int32", "int64"])
def test_uniform(query_tokens, slot_dtype):
    caches = caches_of(np.random.default_rng(query_tokens), len(LENGTHS))
    tokens = flashlatent.prepare_step(LENGTHS, caches, query_tokens=query_tokens, slot_dtype=slot_dtype)
    check(tokens, LENGTHS, np.arange(len(LENGTHS) + 1) * query_tokens, caches)
    assert tokens.positions.shape == tokens.caches[0].lengths.shape == (len(LENGTHS), query_tokens)
    assert tokens.caches[0].indices.shape == (len(LENGTHS), query_tokens, 128)
    assert tokens.caches[0].slots.dtype == slot_dtype
    again = flashlatent.prepare_step(LENGTHS + 1, caches, query_tokens=query_tokens, out=tokens)
    assert again is tokens
    check(tokens, LENGTHS + 1, np.arange(len(LENGTHS) + 1) * query_tokens, caches)


def test_ragged():
    random = np.random.default_rng(3)
    caches = caches_of(random, len(LENGTHS))
    counts = random.integers(0, 4, len(LENGTHS))
    counts[[0, 4, 11]] = 0, 0, 2
    begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    total = int(begins[-1]) + 3  # padding of a graph
    tokens = flashlatent.prepare_step(LENGTHS, caches, cu_seqlens_q=begins, total_tokens=total)
    padded = np.append(begins, total)  # as one more request without a token
    more = [StepCache(np.append(c.block_table, c.block_table[:1], 0), *c[1:]) for c in caches]
    for cache, wider, made in zip(caches, more, tokens.caches):
        positions, slots, seen, indices = expected(np.append(LENGTHS, 0), padded, wider, cache.window)
        np.testing.assert_array_equal(tokens.positions, positions)
        np.testing.assert_array_equal(made.slots, slots)
        np.testing.assert_array_equal(made.lengths, seen)
        if cache.window:
            np.testing.assert_array_equal(made.indices, indices)


def test_long_contexts_and_slots():
    last = 2**31 - 1
    table = np.full((1, 2048), 2**31 - 1, np.int32)
    cache = StepCache(table, 2**20, 1, 1)
    tokens = flashlatent.prepare_step(np.array([last], np.int32), [cache])
    assert tokens.positions[0, 0] == last - 1 and tokens.caches[0].lengths[0, 0] == last
    assert tokens.caches[0].slots[0] == (2**31 - 1) * 2**20 + (last - 1) % 2**20
    assert tokens.caches[0].indices[0, 0, 0] == -1  # no index names that slot


def test_nothing():
    empty = np.zeros(0, np.int32)
    tokens = flashlatent.prepare_step(empty, [StepCache(np.zeros((0, 3), np.int32), 64, 1, 4)])
    assert tokens.positions.shape == (0, 1) and tokens.caches[0].indices.shape == (0, 1, 4)
    tokens = flashlatent.prepare_step(LENGTHS, [])
    assert tokens.caches == () and tokens.positions[8, 0] == 499


@pytest.mark.parametrize("message, change", [
    (r"cache_seqlens is int64 \(2\)", {"cache_seqlens": np.array([5, 6])}),
    (r"caches\[0\].block_table is int32 \(3, 4\).* expected int32 \(2,", {"table": np.zeros((3, 4), np.int32)}),
    (r"caches\[0\].page_size is 0; a whole number from 1 to 1048576", {"page_size": 0}),
    (r"caches\[0\].ratio is 0; a whole number from 1 to 2147483647", {"ratio": 0}),
    (r"query_tokens is -1", {"query_tokens": -1}),
    (r"tokens is 0", {"query_tokens": 0}),
    (r"total_tokens is missing", {"cu_seqlens_q": np.zeros(3, np.int32)}),
    (r"cu_seqlens_q is missing", {"total_tokens": 3}),
    (r"cu_seqlens_q is int32 \(2\)", {"cu_seqlens_q": np.zeros(2, np.int32), "total_tokens": 3}),
    (r"cu_seqlens_q\[2\] is 2; 5 to 9 is accepted", {"cu_seqlens_q": np.array([0, 5, 2], np.int32), "total_tokens": 9}),
    (r"cu_seqlens_q\[0\] is 1; 0 to 0", {"cu_seqlens_q": np.array([1, 2, 2], np.int32), "total_tokens": 9}),
    (r"cu_seqlens_q\[1\] is 10; 0 to 9", {"cu_seqlens_q": np.array([0, 10, 10], np.int32), "total_tokens": 9}),
    (r"slot_dtype is 'int8'", {"slot_dtype": "int8"}),
    (r"slot_dtype is a ndarray", {"slot_dtype": np.zeros(2)}),
    (r"cache_seqlens is a list; an array", {"cache_seqlens": [5, 6]}),
    (r"cache_seqlens is np.int32\(5\)|cache_seqlens has 0 dimensions", {"cache_seqlens": np.int32(5)}),
    (r"cache_seqlens is int32 \(1, 2\)", {"cache_seqlens": np.array([[5, 6]], np.int32)}),
    (r"caches\[0\].block_table is a list; an array", {"table": [[0, 1], [2, 3]]}),
    (r"caches\[0\].page_size is 'x'; a whole number", {"page_size": "x"}),
    (r"caches\[0\].ratio is 1.5; a whole number", {"ratio": 1.5}),
    (r"query_tokens is None; a whole number from 1 to 1073741823", {"query_tokens": None}),
    (r"total_tokens is 2.5", {"cu_seqlens_q": np.zeros(3, np.int32), "total_tokens": 2.5}),
    (r"query_tokens is 2 and cu_seqlens_q is given", {"query_tokens": 2, "cu_seqlens_q": np.zeros(3, np.int32),
                                                      "total_tokens": 0}),
    (r"out is 3; a StepTokens is expected", {"out": 3}),
    (r"out.caches is 4; a sequence", {"out": StepTokens(None, 4)}),
    (r"out.caches\[0\] is None; a CacheTokens", {"out": StepTokens(None, (None,))}),
    (r"tokens is no argument of prepare_step\(\)", {"tokens": 2}),
])
def test_refusals(message, change):
    given = {"cache_seqlens": np.array([5, 6], np.int32), "table": np.zeros((2, 4), np.int32), "page_size": 4,
             "ratio": 1} | change
    cache = StepCache(given.pop("table"), given.pop("page_size"), given.pop("ratio"))
    with pytest.raises(flashlatent.InvalidArgumentError, match=message):
        flashlatent.prepare_step(given.pop("cache_seqlens"), [cache], **given)


@pytest.mark.parametrize("message, caches", [
    (r"caches is 3; a sequence is expected, each entry a StepCache, or a tuple of its fields \(block_table,", 3),
    (r"caches is a StepCache; a sequence", StepCache(None)),
    (r"caches\[0\] is a ndarray; a StepCache", [np.zeros((2, 4), np.int32)]),
    (r"caches\[1\] has 0 fields; a StepCache", [(np.zeros((2, 4), np.int32),), ()]),
    (r"caches\[0\] has 5 fields", [(np.zeros((2, 4), np.int32), 64, 1, 0, 0)]),
    (r"caches\[0\].window is -1", [(np.zeros((2, 4), np.int32), 64, 1, -1)]),
])
def test_refused_caches(message, caches):
    with pytest.raises(flashlatent.InvalidArgumentError, match=message):
        flashlatent.prepare_step(np.array([5, 6], np.int32), caches)


@pytest.mark.parametrize("message, plans", [
    ("plans is None; a sequence", None),
    (r"plans\[0\] is 3; a StepPlan", [3]),
    (r"plans\[0\] has 4 fields", [(None, 0, None, 1)]),
    (r"plans\[0\].problem is None; a Problem", [(None,)]),
    (r"plans\[0\].cache is None; a whole number from 0 to 0", [(True, None)]),
    (r"plans\[0\].cache is 'x'", [(True, "x")]),
    (r"plans\[0\].extra is 1.5", [(True, 0, 1.5)]),
])
def test_refused_plans(message, plans):
    """True stands for a sparse problem."""
    lengths, table = np.array([5, 6], np.int32), np.zeros((2, 4), np.int32)
    problem = flashlatent.Problem.of_arrays(np.zeros((2, 1, 8, 576), np.float16), np.zeros((4, 64, 1, 576), np.float16),
                                            indices=np.zeros((2, 1, 8), np.int32), softmax_scale=0.1)
    if plans is not None:
        plans = [(problem, *plan[1:]) if isinstance(plan, tuple) and plan[0] else plan for plan in plans]
    with pytest.raises(flashlatent.InvalidArgumentError, match=message):
        flashlatent.Step().prepare(lengths, [StepCache(table)], plans=plans)


def test_padding_needs_a_request():
    with pytest.raises(flashlatent.InvalidArgumentError, match="tokens is 3 and cache_seqlens is .* 0 to 0 rows"):
        flashlatent.prepare_step(np.zeros(0, np.int32), [], cu_seqlens_q=np.zeros(1, np.int32), total_tokens=3)


def test_outputs_of_other_shapes_are_refused():
    lengths, table = np.array([5, 6], np.int32), np.zeros((2, 4), np.int32)
    tokens = flashlatent.prepare_step(lengths, [StepCache(table)])
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"caches\[0\].slots is int64 \(2\).* expected int64 \(4\)"):
        flashlatent.prepare_step(lengths, [StepCache(table)], query_tokens=2, out=tokens._replace(
            positions=np.zeros((2, 2), np.int32)))
    with pytest.raises(flashlatent.InvalidArgumentError, match="positions is .* one behind the other"):
        flashlatent.prepare_step(lengths, [StepCache(table)], query_tokens=2, out=tokens._replace(
            positions=np.zeros((2, 4), np.int32)[:, :2]))
    with pytest.raises(flashlatent.InvalidArgumentError, match="out has 1 caches and caches 2"):
        flashlatent.prepare_step(lengths, [StepCache(table)] * 2, out=tokens)
    same = tokens.caches[0]._replace(request_lengths=lengths)
    with pytest.raises(flashlatent.InvalidArgumentError, match="cache_seqlens"):
        flashlatent.prepare_step(lengths, [StepCache(table)], out=tokens._replace(caches=(same,)))
    wide = flashlatent.prepare_step(lengths, [StepCache(table, window=8)], query_tokens=2)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"out.caches\[0\].indices has the shape .*window is 4"):
        flashlatent.prepare_step(lengths, [StepCache(table, window=4)], query_tokens=2, out=wide)
    shared = np.lib.stride_tricks.as_strided(np.zeros(8, np.int32), (2, 2, 8), (0, 0, 4), writeable=True)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"caches\[0\].indices is .*, where elements share memory"):
        flashlatent.prepare_step(lengths, [StepCache(table, window=8)], query_tokens=2,
                                 out=wide._replace(caches=(wide.caches[0]._replace(indices=shared),)))
    with pytest.raises(flashlatent.InvalidArgumentError, match="up to 8"):
        flashlatent.prepare_step(lengths, [StepCache(table)] * 9)


def layer(random, query_tokens):
    """A layer of V4's kind, plain: a window and compressed tokens by page tables."""
    q = random.standard_normal((2, query_tokens, 8, 512)).astype(np.float16)
    window, extra = (random.standard_normal((9, 16, 1, 512)).astype(np.float16) for _ in range(2))
    tables = [np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int32)] * 2
    return q, window, extra, tables


@pytest.mark.parametrize("query_tokens", [1, 2])
def test_a_step(query_tokens):
    """Plans that prepare() made are those that decode() would have made: the same bits."""
    random = np.random.default_rng(5)
    q, window, extra, (table, extra_table) = layer(random, query_tokens)
    lengths = np.array([60, 33], np.int32)
    arguments = {"softmax_scale": 0.05, "causal": query_tokens > 1, "window": 20, "extra_kv_cache": extra,
                 "extra_block_table": extra_table}
    problem = flashlatent.Problem.of_arrays(q, window, table, **arguments)
    step = flashlatent.Step()
    tokens = step.prepare(lengths, [(table, 16), (extra_table, 16, 4)], query_tokens=query_tokens,
                          plans=[StepPlan(problem, 0, 1)])
    seen = tokens.caches[1].lengths
    np.testing.assert_array_equal(seen[:, -1], lengths // 4)
    plan = step.find(problem, q)
    made = plan.kernel
    out, lse = step.decode(q, window, table, lengths, extra_cache_seqlens=seen, **arguments)
    assert step.find(problem, q) is plan and plan.kernel == made  # no other problem was planned for
    other, other_lse = flashlatent.decode(q, window, table, lengths, extra_cache_seqlens=seen, **arguments)
    np.testing.assert_array_equal(out, other)
    np.testing.assert_array_equal(lse, other_lse)


def test_a_sparse_step():
    random = np.random.default_rng(6)
    q = random.standard_normal((2, 2, 8, 576)).astype(np.float16)
    cache = random.standard_normal((9, 16, 1, 576)).astype(np.float16)
    table, lengths = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int32), np.array([60, 3], np.int32)
    step = flashlatent.Step()
    tokens = step.prepare(lengths, [StepCache(table, 16, 1, 8)], query_tokens=2)
    (made,) = tokens.caches
    problem = flashlatent.Problem.of_arrays(q, cache, indices=made.indices, softmax_scale=0.05)
    step.prepare(lengths, [StepCache(table, 16, 1, 8)], query_tokens=2, plans=[(problem,)])
    out, lse = step.decode(q, cache, indices=made.indices, topk_length=np.minimum(made.lengths, 8), softmax_scale=0.05)
    for i, length in enumerate(lengths):
        whole, whole_lse = flashlatent.decode(q[i:i + 1], cache, table[i:i + 1], lengths[i:i + 1], softmax_scale=0.05,
                                              causal=True, window=0)
        if length <= 8:  # the newest tokens are all
            np.testing.assert_allclose(np.asarray(out[i], np.float32), np.asarray(whole[0], np.float32), atol=2e-3)
            np.testing.assert_allclose(lse[i], whole_lse[0], atol=1e-5)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"plans\[0\].cache is 1; a whole number from 0 to 0"):
        step.prepare(lengths, [StepCache(table)], plans=[(problem, 1)])
    with pytest.raises(flashlatent.InvalidArgumentError, match="stateless"):
        flashlatent.Step(stateless=True).prepare(lengths, [StepCache(table)], query_tokens=2, plans=[(problem,)])
