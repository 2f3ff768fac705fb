"""Cache operations and the fp8_656 format, against its definition written out in NumPy; sparse decode."""

import math

import numpy as np
import pytest

import flashlatent
from oracle import Case, attend, bf16_bits, bf16_values, e4m3_values


def dequantise(cache):
    """fp8_656 (..., 656) as float64 (..., 576): 512 e4m3, 4 fp32 scales, 64 bf16."""
    latent = e4m3_values()[cache[..., :512]].reshape(*cache.shape[:-1], 4, 128)
    scales = np.ascontiguousarray(cache[..., 512:528]).view(np.float32).astype(np.float64)
    rope = bf16_values(np.ascontiguousarray(cache[..., 528:]).view(np.uint16)).astype(np.float64)
    return np.concatenate([(latent * scales[..., None]).reshape(*cache.shape[:-1], 512), rope], -1)


def random_bf16(*shape, seed=0):
    return bf16_bits(np.random.default_rng(seed).standard_normal(shape, np.float32))


def test_quantise_by_the_rule():
    cache = random_bf16(3, 16, 1, 576)
    cache[0, 0, 0, :128] = 0
    quantised = flashlatent.convert_cache(cache, format="fp8_656", dtype="bf16")
    assert quantised.dtype == np.uint8 and quantised.shape == (3, 16, 1, 656)
    values = bf16_values(cache).astype(np.float64)
    groups = values[..., :512].reshape(3, 16, 4, 128)
    scales = np.exp2(np.ceil(np.log2(np.maximum(np.abs(groups).max(-1) / 448, 1e-4))))
    np.testing.assert_array_equal(np.ascontiguousarray(quantised[..., 512:528]).view(np.float32)[:, :, 0], scales)
    # Three bits of mantissa: half a unit in the last place is 2**-4; below 2**-6 numbers are 2**-9 apart.
    error = np.abs(dequantise(quantised)[:, :, 0, :512].reshape(groups.shape) - groups)
    assert (error <= np.maximum(np.abs(groups) * 2**-4, scales[..., None] * 2**-10)).all()
    np.testing.assert_array_equal(dequantise(quantised)[..., 512:], values[..., 512:])
    back = flashlatent.convert_cache(quantised, format="bf16")
    np.testing.assert_array_equal(bf16_values(back), dequantise(quantised))  # e4m3 times 2**n: exact in bf16


def test_append_and_gather():
    cache = np.full((4, 16, 1, 656), 0xFF, np.uint8)
    tokens = random_bf16(20, 576)
    slots = np.arange(40, 60)  # in pages 2 and 3
    slots[7] = -1
    flashlatent.append_latent(tokens[:, :512], tokens[:, 512:], slots, cache, dtype="bf16")
    table = np.array([[2, 3], [3, -1]], np.int32)
    rows = flashlatent.gather_cache(cache, table, np.array([0, 20, 24], np.int32), np.array([8, 0], np.int32),
                                    rows=24, format="bf16")
    whole = flashlatent.convert_cache(tokens.reshape(20, 1, 1, 576), format="fp8_656", dtype="bf16")
    expected = flashlatent.convert_cache(whole, format="bf16")[:, 0]
    kept = np.arange(20) != 7
    np.testing.assert_array_equal(rows[:20][kept], expected[kept])
    np.testing.assert_array_equal(rows[20:], expected[8:12])
    raw = flashlatent.gather_cache(cache, table[:1], np.array([0, 4], np.int32), np.array([8], np.int32), rows=4)
    np.testing.assert_array_equal(raw, whole[:4, 0])


def test_copy_pages():
    cache = random_bf16(4, 8, 1, 64)
    before = cache.copy()
    flashlatent.copy_pages(cache, cache, np.array([[0, 3], [1, 2]]))
    np.testing.assert_array_equal(cache, before[[0, 1, 1, 0]])


@pytest.mark.parametrize("match, call", [
    ("slot_mapping", lambda cache: flashlatent.append_latent(
        cache[0, :, 0, :512].copy(), cache[0, :, 0, 512:].copy(), np.full(16, 999), cache, dtype="bf16")),
    ("kv_cache is .* overlaps latent", lambda cache: flashlatent.append_latent(
        cache[0, :, 0, :512], cache[0, :, 0, 512:], np.full(16, 0), cache, dtype="bf16")),
    ("format is 'int4'", lambda cache: flashlatent.convert_cache(cache, format="int4", dtype="bf16")),
    ("to and format are missing", lambda cache: flashlatent.convert_cache(cache, dtype="bf16")),
    ("out and rows are missing", lambda cache: flashlatent.gather_cache(cache, np.zeros((1, 1), np.int32),
                                                                        np.zeros(2, np.int32), dtype="bf16")),
    ("; from_ has 2 pages", lambda cache: flashlatent.copy_pages(cache, cache, np.array([[9, 0]]))),
    ("^format is 'fp8_656' and kv_cache is bf16; the cache's format, bf16 and fp16 are accepted",
     lambda cache: flashlatent.gather_cache(cache, np.zeros((1, 1), np.int32), np.zeros(2, np.int32), rows=0,
                                            format="fp8_656", dtype="bf16")),
])
def test_refusals(match, call):
    with pytest.raises(flashlatent.InvalidArgumentError, match=match):
        call(random_bf16(2, 16, 1, 576))


def fp8_case(lengths, **options):
    case = Case(lengths, d=576, v_dim=512, dtype="bf16", **options)
    live = np.nan_to_num(bf16_values(case.kv_cache), nan=1.0)
    quantised = flashlatent.convert_cache(bf16_bits(live), format="fp8_656", dtype="bf16")
    return case, quantised


def test_dense_decode_from_fp8():
    case, quantised = fp8_case([70, 0, 33], tokens=2)
    case.kv_cache = dequantise(quantised)  # for the oracle
    out, lse = flashlatent.decode(case.q, quantised, case.block_table, case.cache_seqlens, causal=True,
                                  **case.options())
    case.check(out, lse, causal=True)


@pytest.mark.parametrize("page_size", [16, 61])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_sparse_decode(page_size, with_lengths):
    case, quantised = fp8_case([300], heads=8, page_size=page_size)
    rng = np.random.default_rng(1)
    q = random_bf16(3, 2, 8, 576, seed=2)
    tokens = len(quantised) * page_size
    indices = rng.integers(0, tokens, (3, 2, 50)).astype(np.int32)
    indices[rng.random(indices.shape) < 0.3] = -1
    indices[0, 0, :5] = [tokens, 1 << 30, -7, 0, 1]
    indices[1] = -1
    topk_length = np.array([50, 20, 7], np.int32) if with_lengths else None
    sink = rng.standard_normal(8).astype(np.float32)
    out, lse = flashlatent.decode(q, quantised, indices=indices, topk_length=topk_length, attn_sink=sink,
                                  **case.options())
    rows = dequantise(quantised).reshape(tokens, 576)
    for i in range(3):
        for t in range(2):
            named = indices[i, t] if topk_length is None else indices[i, t, :topk_length[i]]
            seen = rows[named[(named >= 0) & (named < tokens)]]
            for h in range(8):
                expected, expected_lse = attend(bf16_values(q)[i, t, h], seen, 512, case.scale, sink[h])
                np.testing.assert_allclose(bf16_values(out)[i, t, h], expected, rtol=2**-7, atol=2**-7)
                assert math.isclose(lse[i, h, t], expected_lse, rel_tol=1e-5, abs_tol=1e-5)


def test_sparse_problem():
    problem = flashlatent.Problem(batch=2, heads=8, tokens=2, topk=64, kv_format="fp8_656", softmax_scale=1)
    assert problem.topk == 64 and problem.kv_format == "fp8_656"
    assert flashlatent.Problem(batch=2, heads=8, max_pages=1, softmax_scale=1).topk is None
    with pytest.raises(flashlatent.InvalidArgumentError, match="causal is set"):
        flashlatent.Problem(batch=2, heads=8, topk=64, causal=True, softmax_scale=1)


def test_views_of_one_cache_are_refused():
    cache = np.arange(4 * 2 * 1 * 4, dtype=np.float16).reshape(4, 2, 1, 4)
    before = cache.copy()
    with pytest.raises(flashlatent.InvalidArgumentError, match="to is .* overlaps from_,"):
        flashlatent.copy_pages(cache[:3], cache[1:], np.array([[0, 0], [1, 1], [2, 2]], np.int32))
    with pytest.raises(flashlatent.InvalidArgumentError, match="to is .* overlaps from_,"):
        flashlatent.convert_cache(cache[:3], cache[1:])
    np.testing.assert_array_equal(cache, before)
    flashlatent.copy_pages(cache, cache, np.array([[0, 2], [1, 3]], np.int32))
    np.testing.assert_array_equal(cache[2:], before[:2])
    flashlatent.copy_pages(cache[2:], cache[:2], np.array([[0, 1]], np.int32))
    np.testing.assert_array_equal(cache[1], before[0])


@pytest.mark.parametrize("page_size", [4096, 32768, 65536])
def test_lengths_near_the_end_of_int32(page_size):
    row = np.ones((1, 1, 1, 8), np.float16)
    cache = np.lib.stride_tricks.as_strided(row, (1, page_size, 1, 8), (16, 0, 16, 2))
    table = np.zeros((3, 2**31 // page_size), np.int32)
    lengths = np.array([2**31 - 1, 2**31 - 20000, 2**31 - 100], np.int32)
    out, lse = flashlatent.decode_kv(np.ones((3, 1, 1, 8), np.float16), cache, cache, table, lengths, softmax_scale=0.3,
                                     causal=True, window=50)
    np.testing.assert_allclose(np.asarray(out, np.float32), 1)
    np.testing.assert_allclose(lse, 2.4 + math.log(50), rtol=1e-5)
