"""fp8_584 caches and two caches in one softmax, against their definition written out in NumPy."""
import numpy as np
import pytest

import flashlatent


def bf16(array):
    """float32 of bf16 bits."""
    return (np.asarray(array, np.uint16).astype(np.uint32) << 16).view(np.float32)


def bf16_bits(array):
    bits = np.asarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def e4m3(codes):
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent > 0, (1 + mantissa / 8) * 2.0**(exponent - 7.0), mantissa / 8 * 2.0**-6)
    return np.where(codes & 128, -magnitude, magnitude)


def rows_584(pages, page_size):
    """uint8 (pages, page_bytes) as float64 (pages * page_size, 512), by the definition of the format."""
    rows = []
    for page in np.asarray(pages):
        for t in range(page_size):
            data, scales = page[576 * t:576 * t + 576], page[576 * page_size + 8 * t:][:7]
            nope = e4m3(data[:448].astype(np.int64)) * np.repeat(2.0**(scales.astype(np.float64) - 127), 64)
            rows.append(np.concatenate([nope, bf16(data[448:].copy().view(np.uint16))]))
    return np.array(rows)


def pages_584(rng, pages, page_size, padding=0):
    """(bytes, view): the pages (pages, page_bytes), and what engines pass, (pages, page_size, 1, 584)."""
    page_bytes = (page_size * 584 + 575) // 576 * 576 + padding
    memory = np.full((pages, page_bytes), 0xFF, np.uint8)
    view = np.lib.stride_tricks.as_strided(memory, (pages, page_size, 1, 584), (page_bytes, 584, 584, 1))
    slots = np.arange(pages * page_size, dtype=np.int32)
    flashlatent.append_latent(bf16_bits(rng.standard_normal((len(slots), 448))),
                              bf16_bits(rng.standard_normal((len(slots), 64))), slots, view, dtype="bf16")
    return memory, view


def attention(q, rows, scale):
    scores = q @ rows.T * scale
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    return weights @ rows / weights.sum(-1, keepdims=True), (largest + np.log(weights.sum(-1, keepdims=True)))[:, 0]


@pytest.mark.parametrize("page_size, padding", [(1, 0), (2, 16), (3, 0), (64, 4096)])
def test_convert(page_size, padding):
    rng = np.random.default_rng(page_size)
    memory, view = pages_584(rng, 4, page_size, padding)
    back = flashlatent.convert_cache(view, format="bf16")
    np.testing.assert_array_equal(bf16(back).reshape(-1, 512), rows_584(memory, page_size).astype(np.float32))
    again = flashlatent.convert_cache(back, format="fp8_584", dtype="bf16")
    assert again.shape == (4, page_size, 1, 584) and again.strides[0] == (page_size * 584 + 575) // 576 * 576
    np.testing.assert_array_equal(flashlatent.convert_cache(again, format="bf16"), back)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("by_pages", [False, True])
@pytest.mark.parametrize("by_token", [False, True])
def test_decode(plain, by_pages, by_token):
    rng = np.random.default_rng(1)
    (window, window_view), (extra, extra_view) = pages_584(rng, 3, 64), pages_584(rng, 40, 2, 16)
    rows, extra_rows = rows_584(window, 64), rows_584(extra, 2)
    q = bf16_bits(rng.standard_normal((2, 2, 6, 512)))
    indices = rng.integers(-1, 192, (2, 2, 70)).astype(np.int32)
    topk_length, extra_length = np.array([[70, 70], [0, 0]], np.int32), np.array([[0, 0], [20, 20]], np.int32)
    if by_token:
        topk_length[0, 1], extra_length[1, 0] = 3, 19
    options = {"indices": indices, "topk_length": topk_length if by_token else topk_length[:, 0].copy()}
    if by_pages:
        lengths = np.array([[33, 34], [0, 5]], np.int32)
        table = rng.permutation(40)[:34].reshape(2, 17).astype(np.int32)
        options |= {"extra_block_table": table, "extra_cache_seqlens": lengths}
    else:
        extra_indices = rng.integers(-1, 80, (2, 2, 20)).astype(np.int32)
        options |= {"extra_indices": extra_indices, "extra_topk_length": extra_length if by_token else extra_length[:, 0].copy()}
    if plain:
        options |= {"page_size": 64, "extra_page_size": 2}
    out, lse = flashlatent.decode(q, window if plain else window_view,
                                  extra_kv_cache=extra if plain else extra_view, softmax_scale=0.04, dtype="bf16",
                                  **options)
    for i in range(2):
        for t in range(2):
            named = indices[i, t, :topk_length[i, t]]
            seen = [rows[named[named >= 0]]]
            if by_pages:
                seen.append(extra_rows.reshape(40, 2, 512)[table[i]].reshape(-1, 512)[:lengths[i, t]])
            else:
                named = extra_indices[i, t, :extra_length[i, t]]
                seen.append(extra_rows[named[named >= 0]])
            seen = np.concatenate(seen)
            if len(seen) == 0:
                assert (lse[i, :, t] == -np.inf).all() and not np.asarray(out)[i, t].any()
                continue
            expected, expected_lse = attention(bf16(q[i, t]).astype(np.float64), seen, 0.04)
            np.testing.assert_allclose(lse[i, :, t], expected_lse, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(bf16(out[i, t]), expected, rtol=2**-6, atol=2**-7)


def test_plan_and_problem():
    rng = np.random.default_rng(2)
    (window, window_view), (_, extra_view) = pages_584(rng, 3, 64), pages_584(rng, 40, 2)
    q = bf16_bits(rng.standard_normal((2, 1, 4, 512)))
    table, lengths = np.array([[0, 1], [2, -1]], np.int32), np.array([100, 30], np.int32)
    extra_table, extra_lengths = np.arange(40, dtype=np.int32).reshape(2, 20), np.array([40, 7], np.int32)
    arguments = {"extra_kv_cache": extra_view, "extra_block_table": extra_table}
    problem = flashlatent.Problem(batch=2, heads=4, softmax_scale=1.0, max_pages=2, qk_dim=512, window=50,
                                  kv_format="fp8_584", extra_page_size=2, extra_max_pages=20)
    assert problem == flashlatent.Problem.of_arrays(q, window_view, table, softmax_scale=1.0, window=50, dtype="bf16",
                                                    **arguments)
    assert (problem.extra_page_size, problem.extra_topk, problem.extra_max_pages, problem.window) == (2, None, 20, 50)
    plan = flashlatent.Plan(problem)
    alone = flashlatent.Plan(flashlatent.Problem(batch=2, heads=4, softmax_scale=1.0, max_pages=2))
    with pytest.raises(flashlatent.InvalidArgumentError, match="extra_lengths is given, but the plan's problem has no"):
        alone.schedule(lengths, extra_lengths=extra_lengths)
    plan.schedule(lengths, extra_lengths=extra_lengths)
    out, lse = plan.decode(q, window_view, table, lengths, extra_cache_seqlens=extra_lengths, **arguments)
    one, one_lse = flashlatent.decode(q, window, table, lengths, softmax_scale=1.0, window=50, dtype="bf16",
                                      page_size=64, extra_cache_seqlens=extra_lengths, **arguments)
    np.testing.assert_array_equal(out, one)
    np.testing.assert_array_equal(lse, one_lse)


def test_ragged():
    rng = np.random.default_rng(4)
    (window, window_view), (extra, extra_view) = pages_584(rng, 6, 64), pages_584(rng, 40, 2)
    rows, extra_rows = rows_584(window, 64), rows_584(extra, 2)
    begins, lengths = np.array([0, 3, 3, 4], np.int32), np.array([100, 5, 30], np.int32)
    table, extra_lengths = rng.permutation(6).reshape(3, 2).astype(np.int32), np.array([33, 4, 0], np.int32)
    extra_table = rng.permutation(40)[:39].reshape(3, 13).astype(np.int32)
    extra_table = np.concatenate([extra_table, np.full((3, 4), -1, np.int32)], 1)
    extra_lengths = np.minimum(extra_lengths, 26)
    q = bf16_bits(rng.standard_normal((4, 6, 512)))
    caches = {"extra_kv_cache": extra_view, "extra_block_table": extra_table}
    options = {"cu_seqlens_q": begins, "tokens": 3, "causal": True, "window": 50, "softmax_scale": 0.04,
               "dtype": "bf16"}
    out, lse = flashlatent.decode(q, window_view, table, lengths, extra_cache_seqlens=extra_lengths, **caches,
                                  **options)
    for i in range(3):
        count = begins[i + 1] - begins[i]
        assert (lse[i, :, count:] == -np.inf).all()
        for t in range(count):
            end = lengths[i] - count + t + 1
            seen = rows.reshape(6, 64, 512)[table[i]].reshape(-1, 512)[max(end - 50, 0):end]
            more = extra_rows.reshape(40, 2, 512)[extra_table[i]].reshape(-1, 512)[:extra_lengths[i]]
            expected, expected_lse = attention(bf16(q[begins[i] + t]).astype(np.float64),
                                               np.concatenate([seen, more]), 0.04)
            np.testing.assert_allclose(lse[i, :, t], expected_lse, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(bf16(out[begins[i] + t]), expected, rtol=2**-6, atol=2**-7)
    problem = flashlatent.Problem.of_arrays(q, window_view, table, **caches, **options)
    plan = flashlatent.Plan(problem)
    for known in (begins, None):
        plan.schedule(lengths, extra_lengths=extra_lengths, cu_seqlens_q=known)
        again, _ = plan.decode(q, window_view, table, lengths, cu_seqlens_q=begins, extra_cache_seqlens=extra_lengths,
                               **caches)
        np.testing.assert_allclose(bf16(again), bf16(out), rtol=2**-7, atol=2**-8)
    with pytest.raises(flashlatent.InvalidArgumentError, match="cu_seqlens_q is int32"):
        plan.schedule(lengths, extra_lengths=extra_lengths, cu_seqlens_q=begins[1:])
    with pytest.raises(flashlatent.InvalidArgumentError, match="q is ragged; then an extra cache goes by extra_block"):
        flashlatent.decode(q, window_view, table, lengths, extra_kv_cache=extra_view,
                           extra_indices=np.zeros((3, 3, 8), np.int32), **options)


@pytest.mark.parametrize("match, options", [
    ("page_size is missing", {"kv_cache": np.zeros((3, 37440), np.uint8)}),
    ("page_size is 64 and kv_cache is", {"page_size": 64}),
    ("extra_kv_cache is missing", {"extra_kv_cache": None}),
    ("neither extra_indices", {"extra_indices": None, "extra_topk_length": None}),
    (r"extra_topk_length\[1\] is 21", {"extra_topk_length": np.array([1, 21], np.int32)}),
    ("extra_topk_length is fp32", {"extra_topk_length": np.zeros(2, np.float32)}),
    ("extra_page_size is 3 and extra_kv_cache is not given",
     {"extra_kv_cache": None, "extra_indices": None, "extra_topk_length": None, "extra_page_size": 3}),
    ("extra_page_size is 0; it must be", {"extra_kv_cache": np.zeros((3, 2000), np.uint8), "extra_page_size": 0}),
    ("extra_kv_cache is .*a page of extra_page_size = 2 tokens of fp8_584 has 1168",
     {"extra_kv_cache": np.zeros((3, 1152), np.uint8), "extra_page_size": 2}),
    ("kv_cache is .*a page of page_size = 64 tokens of fp8_584 has 37376",
     {"kv_cache": np.zeros((3, 37375), np.uint8), "page_size": 64}),
    ("extra_block_table is given, but", {"extra_block_table": np.zeros((2, 3), np.int32)}),
])
def test_refusals(match, options):
    rng = np.random.default_rng(3)
    arguments = {
        "q": bf16_bits(rng.standard_normal((2, 1, 4, 512))), "kv_cache": pages_584(rng, 3, 64)[1], "dtype": "bf16",
        "indices": np.zeros((2, 1, 8), np.int32), "extra_kv_cache": pages_584(rng, 10, 2)[1],
        "extra_indices": np.zeros((2, 1, 20), np.int32), "extra_topk_length": np.zeros(2, np.int32),
        "softmax_scale": 1.0, **options}
    with pytest.raises(flashlatent.InvalidArgumentError, match=match):
        flashlatent.decode(**arguments)
