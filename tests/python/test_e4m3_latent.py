"""e4m3 latent caches in NumPy: operations and decode, against their definition."""
import numpy as np
import pytest

import flashlatent
from oracle import bf16_bits, bf16_values, decode as expected_decode, e4m3_values

SCALE = 192**-0.5
CODES = e4m3_values()
ORDER = np.argsort(np.where(np.isfinite(CODES), CODES, np.inf), kind="stable")[:254]  # of the finite ones


def one(value):
    return np.array([value], np.float32)


def random_codes(rng, shape):
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0  # NaN
    return codes


def nearest(numbers):
    """The nearest e4m3 numbers, of two the one with an even code, clipped to the largest."""
    at = np.clip(np.searchsorted(CODES[ORDER], numbers), 1, len(ORDER) - 1)
    low, high = CODES[ORDER][at - 1], CODES[ORDER][at]
    nearer = np.where(numbers - low < high - numbers, low, high)
    return np.where((numbers - low == high - numbers) & (ORDER[at - 1] & 1 == 0), low, nearer)


def case(tokens=2, heads=5, dim=576):
    rng = np.random.default_rng(dim + tokens)
    lengths = np.array([0, 1, 70, 130], np.int32)
    cache = random_codes(rng, (12, 16, 1, dim)) & 0xBF  # up to 2 in magnitude
    table = np.arange(36, dtype=np.int32).reshape(4, 9) % 12
    q = rng.standard_normal((4, tokens, heads, dim)).astype(np.float32)
    return q, cache, table, lengths


@pytest.mark.parametrize("dim", [512, 576])
@pytest.mark.parametrize("causal", [False, True])
def test_bf16_queries(dim, causal):
    q, cache, table, lengths = case(dim=dim)
    bits = bf16_bits(q)
    out, lse = flashlatent.decode(bits, cache, table, lengths, softmax_scale=SCALE, causal=causal, dtype="bf16",
                                  kv_scale=one(0.3))
    expected_out, expected_lse = expected_decode(bf16_values(bits), CODES[cache] * np.float32(0.3), table, lengths, 512,
                                                 SCALE, causal)
    np.testing.assert_allclose(bf16_values(out), expected_out, rtol=2**-7, atol=2**-9)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("a_head", [False, True])
def test_e4m3_queries(a_head):
    q, cache, table, lengths = case(tokens=1)
    codes = random_codes(np.random.default_rng(1), q.shape) & 0xBF
    q_scale = np.linspace(0.5, 1.5, 5).astype(np.float32) if a_head else one(0.7)
    numbers = CODES[codes] * q_scale.reshape(1, 1, -1, 1)
    expected_out, expected_lse = expected_decode(numbers, CODES[cache] * np.float32(0.3), table, lengths, 512, SCALE)
    for products, rtol in (("bf16", 2**-7), ("auto", 2**-4), ("fp8", 2**-4)):
        out, lse = flashlatent.decode(codes, cache, table, lengths, softmax_scale=SCALE, products=products,
                                      kv_scale=one(0.3), q_scale=q_scale)
        assert out.dtype == np.uint16  # the bits of bf16
        error = np.linalg.norm(bf16_values(out) - expected_out, axis=-1)
        assert (error <= rtol * np.linalg.norm(expected_out, axis=-1) + 1e-6).all()
        np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-4)


def test_fp8_products_round_queries():
    q, cache, table, lengths = case()
    bits = bf16_bits(q)
    out, lse = flashlatent.decode(bits, cache, table, lengths, softmax_scale=SCALE, products="fp8", dtype="bf16")
    numbers = bf16_values(bits).astype(np.float64)
    power = 2.0**np.ceil(np.log2(np.abs(numbers).max(-1, keepdims=True) / 448))
    expected_out, expected_lse = expected_decode(nearest(numbers / power) * power, CODES[cache], table, lengths, 512, SCALE)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-4)
    error = np.linalg.norm(bf16_values(out) - expected_out, axis=-1)
    assert (error <= 2**-4 * np.linalg.norm(expected_out, axis=-1) + 1e-6).all()


def test_cache_operations():
    rng = np.random.default_rng(3)
    latent, rope = (bf16_bits(rng.standard_normal((5, d))) for d in (512, 64))
    rows = np.concatenate([bf16_values(latent), bf16_values(rope)], -1)
    cache = np.full((2, 4, 1, 576), 0xFF, np.uint8)
    slots = np.array([7, 0, -1, 3, 4], np.int32)
    flashlatent.append_latent(latent, rope, slots, cache, dtype="bf16", kv_scale=one(0.013))
    written = CODES[cache.reshape(8, 576)]
    for row, slot in zip(rows, slots):
        if slot >= 0:
            np.testing.assert_array_equal(written[slot], nearest(row / np.float32(0.013)))
    assert (cache.reshape(8, 576)[1] == 0xFF).all()
    plain = flashlatent.convert_cache(cache, format="fp16", kv_scale=one(0.013))
    assert plain.shape == (2, 4, 1, 576)
    again = flashlatent.convert_cache(plain, format="e4m3", new_kv_scale=one(0.013))
    np.testing.assert_array_equal(again.reshape(8, 576)[[7, 0, 3, 4]], cache.reshape(8, 576)[[7, 0, 3, 4]])
    table, begins = np.array([[1, 0]], np.int32), np.array([0, 4], np.int32)
    gathered = flashlatent.gather_cache(cache, table, begins, rows=4, format="fp16", kv_scale=one(0.013))
    np.testing.assert_array_equal(gathered[:, 0], plain[1, :, 0])


def test_sparse_prefill():
    rng = np.random.default_rng(4)
    _, cache, _, _ = case()
    q = bf16_bits(rng.standard_normal((7, 3, 576)))
    indices = rng.integers(-1, 192, (7, 1, 20)).astype(np.int32)
    out, _, lse = flashlatent.sparse_prefill(q, cache, indices, softmax_scale=SCALE, dtype="bf16", kv_scale=one(0.3))
    decoded = flashlatent.decode(q[:, None], cache, indices=indices, softmax_scale=SCALE, dtype="bf16", kv_scale=one(0.3))
    np.testing.assert_array_equal(out, decoded[0][:, 0])
    np.testing.assert_array_equal(lse, decoded[1][:, :, 0])


def test_problem():
    problem = flashlatent.Problem(batch=2, heads=8, softmax_scale=SCALE, max_pages=4, page_size=16,
                                  kv_format="e4m3", q_dtype="e4m3")
    assert (problem.kv_format, problem.q_dtype, problem.dtype, problem.products) == ("e4m3", "e4m3", "bf16", "auto")
    plan = flashlatent.Plan(problem)
    q, cache, table, lengths = case(tokens=1, heads=8)
    arrays = (random_codes(np.random.default_rng(1), (2, 1, 8, 576)), cache, table[2:, :4].copy(),
              np.array([20, 64], np.int32))
    plan.schedule(arrays[3])
    got = plan.decode(*arrays, kv_scale=one(0.1), q_scale=one(0.2))
    wanted = flashlatent.decode(*arrays, softmax_scale=SCALE, kv_scale=one(0.1), q_scale=one(0.2))
    np.testing.assert_array_equal(got[0], wanted[0])


@pytest.mark.parametrize("change, message", [
    ({"products": "int8"}, "products is 'int8'; auto, bf16 and fp8 are accepted"),
    ({"kv_scale": np.ones(2, np.float32)}, "kv_scale is fp32 (2)"),
    ({"q_scale": np.ones(1, np.float32)}, "q_scale is given, but q is not e4m3"),
    ({"kv_scale": np.zeros(1, np.float32)}, "kv_scale[0] is 0; positive finite scales are accepted"),
    ({"kv_scale": np.full(1, np.nan, np.float32)}, "kv_scale[0] is nan; positive"),
    ({"kv_scale": np.ones(1)}, "kv_scale has elements of type float64; fp32 is expected"),
])
def test_refusals(change, message):
    q, cache, table, lengths = case()
    with pytest.raises(flashlatent.InvalidArgumentError) as error:
        flashlatent.decode(bf16_bits(q), cache, table, lengths, softmax_scale=SCALE, dtype="bf16", **change)
    assert message in str(error.value)


def test_query_scales_are_checked():
    _, cache, table, lengths = case()
    codes = random_codes(np.random.default_rng(1), (len(table), 1, 8, 576))
    for scale, message in ((np.ones(5, np.float32), r"q_scale is fp32 \(5\) .*; expected fp32 \(1\) or \(8\), one a head"),
                           (np.array([1] * 7 + [-1], np.float32), r"q_scale\[7\] is -1; positive")):
        with pytest.raises(flashlatent.InvalidArgumentError, match=message):
            flashlatent.decode(codes, cache, table, lengths, softmax_scale=SCALE, q_scale=scale)


@pytest.mark.parametrize("scale", [0, -1, np.nan, np.inf])
def test_nothing_is_written_with_a_scale_that_is_none(scale):
    cache = np.full((2, 4, 1, 576), 7, np.uint8)
    plain = np.zeros((2, 4, 1, 576), np.uint16)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"^kv_scale\[0\] is "):
        flashlatent.append_latent(plain[0, :, 0], None, np.arange(4), cache, dtype="bf16", kv_scale=one(scale))
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"^new_kv_scale\[0\] is "):
        flashlatent.convert_cache(plain, cache, dtype="bf16", new_kv_scale=one(scale))
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"^kv_scale\[0\] is "):
        flashlatent.convert_cache(cache, format="bf16", kv_scale=one(scale))
    assert (cache == 7).all()


def test_elements_that_e4m3_does_not_have():
    with pytest.raises(flashlatent.InvalidArgumentError, match="format is 'e4m3' and from_ is fp16 .2, 4, 1, 600"):
        flashlatent.convert_cache(np.zeros((2, 4, 1, 600), np.float16), format="e4m3")


def test_float8_of_another_kind_is_named():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    _, cache, table, lengths = case()
    q = np.zeros((len(table), 1, 8, 576), ml_dtypes.float8_e5m2)
    with pytest.raises(flashlatent.InvalidArgumentError, match="float8_e5m2; .*with an e4m3 cache uint8 and float8_e4m3fn"):
        flashlatent.decode(q, cache, table, lengths, softmax_scale=SCALE)


def test_scales_of_other_caches_are_refused():
    q, _, table, lengths = case()
    plain = np.zeros((12, 16, 1, 576), np.uint16)
    with pytest.raises(flashlatent.InvalidArgumentError, match="kv_scale is given, but the cache's KV format is not e4m3"):
        flashlatent.decode(bf16_bits(q), plain, table, lengths, softmax_scale=SCALE, dtype="bf16", kv_scale=one(1))
    with pytest.raises(flashlatent.InvalidArgumentError, match="products is fp8; that is for an e4m3 latent cache"):
        flashlatent.decode(bf16_bits(q), plain, table, lengths, softmax_scale=SCALE, dtype="bf16", products="fp8")
