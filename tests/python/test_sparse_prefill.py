"""Sparse prefill against its definition in NumPy, float64."""

import math

import numpy as np
import pytest

import flashlatent
from oracle import bf16_bits, bf16_values

INT32 = np.iinfo(np.int32)


class Prefill:
    """Contiguous rows; a third of the indices name none of them, the second query token's all; rows that are not
    named are NaN."""

    def __init__(self, s_q=5, heads=9, d=576, s_kv=100, topk=77, dtype="bf16", lengths=False, sink=False, seed=0):
        rng = np.random.default_rng(seed)
        self.dtype = dtype
        round_to = bf16_bits if dtype == "bf16" else lambda x: x.astype(np.float16)
        self.q = round_to(rng.standard_normal((s_q, heads, d), np.float32))
        self.kv = round_to(rng.standard_normal((s_kv, 1, d), np.float32))
        self.kv[s_kv // 2] = 0xFFFF if dtype == "bf16" else np.nan
        indices = rng.integers(0, s_kv, (s_q, 1, topk))
        indices += indices == s_kv // 2
        outside = rng.choice([INT32.min, -1, s_kv, INT32.max], indices.shape)
        skipped = rng.random(indices.shape) < 1 / 3
        skipped[1:2] = True
        self.indices = np.where(skipped, outside, indices).astype(np.int32)
        self.topk_length = None
        if lengths:
            self.topk_length = np.resize(np.array([topk, topk, topk // 2, 0], np.int32), s_q)
            for t, length in enumerate(self.topk_length):
                self.indices[t, 0, length:] = s_kv // 2
        self.attn_sink = np.resize(np.array([math.inf, -math.inf, 4, -1], np.float32), heads) if sink else None
        self.scale = d**-0.5

    def call(self, **options):
        if self.dtype == "bf16":
            options["dtype"] = "bf16"
        return flashlatent.sparse_prefill(self.q, self.kv, self.indices, softmax_scale=self.scale,
                                          topk_length=self.topk_length, attn_sink=self.attn_sink, **options)

    def numbers(self, array):
        return np.asarray(bf16_values(array) if array.dtype == np.uint16 else array, np.float64)

    def expected(self):
        q, kv = self.numbers(self.q), self.numbers(self.kv)[:, 0]
        s_q, heads, _ = q.shape
        out, lse = np.zeros((s_q, heads, 512)), np.full((s_q, heads), -math.inf)
        max_logits = lse.copy()
        for t in range(s_q):
            named = self.indices[t, 0, :None if self.topk_length is None else self.topk_length[t]]
            rows = kv[named[(named >= 0) & (named < len(kv))]]
            if len(rows) == 0:
                continue
            scores = q[t] @ rows.T * self.scale
            max_logits[t] = scores.max(-1)
            weights = np.exp(scores - max_logits[t][:, None])
            lse[t] = max_logits[t] + np.log(weights.sum(-1))
            out[t] = weights @ rows[:, :512] / weights.sum(-1)[:, None]
            if self.attn_sink is not None:
                out[t] /= 1 + np.exp(self.attn_sink - lse[t])[:, None]
        return out, max_logits, lse

    def check(self, out, max_logits, lse):
        expected_out, expected_max, expected_lse = self.expected()
        tolerance = 2**-7 if self.dtype == "bf16" else 2**-10
        np.testing.assert_allclose(self.numbers(np.asarray(out)), expected_out, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(np.asarray(max_logits), expected_max, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.asarray(lse), expected_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads, d, topk, dtype", [(9, 576, 77, "bf16"), (64, 512, 65, "bf16"), (128, 576, 128, "bf16"),
                                                   (8, 512, 1, "fp16"), (9, 576, 300, "fp16")])
@pytest.mark.parametrize("lengths", [False, True])
def test_against_definition(heads, d, topk, dtype, lengths):
    case = Prefill(heads=heads, d=d, topk=topk, dtype=dtype, lengths=lengths, sink=True)
    out, max_logits, lse = case.call()
    assert out.dtype == case.q.dtype and max_logits.dtype == lse.dtype == np.float32
    case.check(out, max_logits, lse)
    assert (lse[1] == -math.inf).all() and (max_logits[1] == -math.inf).all() and (out[1] == 0).all()


def test_arrays_of_the_caller():
    case = Prefill()
    out, max_logits, lse = np.full((5, 9, 512), 0xFFFF, np.uint16), *np.full((2, 9, 5), np.nan, np.float32)
    results = case.call(out=out, max_logits=max_logits.T, lse=lse.T, workspace=np.full(1 << 22, 255, np.uint8), threads=2)
    assert results[0] is out
    case.check(out, max_logits.T, lse.T)


def test_paged_caches_and_an_extra_one():
    case = Prefill(d=512, s_kv=96)
    case.kv[48] = case.kv[0]
    plain = case.kv.reshape(32, 3, 1, 512)
    same = case.call()
    for given, again in zip(same, flashlatent.sparse_prefill(case.q, plain, case.indices, softmax_scale=case.scale,
                                                             dtype="bf16")):
        np.testing.assert_array_equal(given, again)
    quantised = flashlatent.convert_cache(plain, format="fp8_584", dtype="bf16")
    case.kv = flashlatent.convert_cache(quantised, format="bf16").reshape(96, 1, 512)
    results = flashlatent.sparse_prefill(case.q, quantised, case.indices, softmax_scale=case.scale, dtype="bf16")
    case.check(*results)
    # Half of the indices by the second cache: the same tokens, in another order.
    more = {"extra_kv_cache": quantised, "extra_indices": np.ascontiguousarray(case.indices[..., 40:])}
    case.check(*flashlatent.sparse_prefill(case.q, quantised, np.ascontiguousarray(case.indices[..., :40]),
                                           softmax_scale=case.scale, dtype="bf16", **more))


def test_pages_of_bytes():
    case = Prefill(d=512, s_kv=96)
    case.kv[48] = case.kv[0]
    view = flashlatent.convert_cache(case.kv.reshape(24, 4, 1, 512), format="fp8_584", dtype="bf16")
    pages = np.lib.stride_tricks.as_strided(view, (24, view.strides[0]), (view.strides[0], 1))
    case.kv = flashlatent.convert_cache(view, format="bf16").reshape(96, 1, 512)
    case.check(*flashlatent.sparse_prefill(case.q, pages, case.indices, page_size=4, softmax_scale=case.scale,
                                           dtype="bf16"))
    with pytest.raises(flashlatent.InvalidArgumentError, match="page_size is missing"):
        flashlatent.sparse_prefill(case.q, pages, case.indices, softmax_scale=1.0, dtype="bf16")


def test_without_largest_scores():
    case = Prefill(lengths=True, sink=True)
    out, max_logits, lse = case.call(with_max_logits=False)
    assert max_logits is None
    for given, again in zip((out, lse), case.call()[::2]):
        np.testing.assert_array_equal(given, again)
    with pytest.raises(flashlatent.InvalidArgumentError, match="max_logits is fp32 .5, 9.*without largest scores"):
        case.call(with_max_logits=False, max_logits=np.zeros((5, 9), np.float32))


def test_e4m3_queries():
    rng = np.random.default_rng(3)
    pages = bf16_bits(rng.standard_normal((24, 4, 1, 576), np.float32))
    cache = flashlatent.convert_cache(pages, format="e4m3", dtype="bf16")
    q = rng.integers(0x28, 0x48, (5, 16, 576)).astype(np.uint8) | (rng.integers(0, 2, (5, 16, 576)) << 7).astype(np.uint8)
    indices = rng.integers(0, 96, (5, 1, 70)).astype(np.int32)
    options = {"softmax_scale": 576**-0.5, "q_scale": np.full(16, 0.5, np.float32),
               "kv_scale": np.full(1, 0.25, np.float32)}
    out, max_logits, lse = flashlatent.sparse_prefill(q, cache, indices, **options)
    assert out.dtype == np.uint16 and max_logits.shape == (5, 16)
    expected, expected_lse = flashlatent.decode(q[:, None], cache, indices=indices, v_dim=512, **options)
    np.testing.assert_allclose(bf16_values(out), bf16_values(expected[:, 0]), rtol=2**-6, atol=2**-8)
    np.testing.assert_allclose(lse, expected_lse[..., 0], rtol=1e-3, atol=1e-3)
    shared = np.zeros((5, 16), np.float32)
    shared[0] = 0.5
    with pytest.raises(flashlatent.InvalidArgumentError, match="lse .*overlaps q_scale"):
        flashlatent.sparse_prefill(q, cache, indices, **{**options, "q_scale": shared[0], "lse": shared})
    with pytest.raises(flashlatent.InvalidArgumentError, match="q is uint8 .*; with a cache of 16 bits bf16 and fp16"):
        flashlatent.sparse_prefill(q, pages.view(np.float16), indices, softmax_scale=1.0)
    with pytest.raises(flashlatent.InvalidArgumentError, match="products is 'fp4'"):
        flashlatent.sparse_prefill(q, cache, indices, products="fp4", **options)


def test_lengths_are_checked():
    case = Prefill(lengths=True)
    case.topk_length[3] = 78
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"topk_length\[3\] is 78"):
        case.call()
    assert case.call(check_inputs=False)[0].shape == (5, 9, 512)


@pytest.mark.parametrize("match, change", [
    ("q is bf16 .5, 9, 576, 1.*; expected bf16 or fp16 .s_q, h_q, d", {"q": lambda c: c.q[..., None]}),
    ("kv is bf16 .100, 576.*; expected rows .s_kv, 1, d", {"kv": lambda c: c.kv[:, 0]}),
    ("indices is int32 .5, 77", {"indices": lambda c: c.indices[:, 0]}),
    ("topk_length is int32 .4", {"topk_length": lambda c: np.zeros(4, np.int32)}),
    ("attn_sink is fp32 .8", {"attn_sink": lambda c: np.zeros(8, np.float32)}),
    ("v_dim is 600", {"v_dim": lambda c: 600}),
    ("max_logits has elements of type float64; fp32 is expected", {"max_logits": lambda c: np.zeros((5, 9))}),
    ("extra_page_size is 4 and extra_kv_cache is missing", {"extra_page_size": lambda c: 4}),
    ("kv is bf16 .2147483648, 1, 576.*; extents must be from 0 to 2.30",
     {"kv": lambda c: np.broadcast_to(c.kv[:1], (2**31, 1, 576))}),
    ("max_logits is fp32 .9, 5", {"max_logits": lambda c: np.zeros((9, 5), np.float32)}),
    ("extra_indices is missing", {"extra_kv_cache": lambda c: c.kv[:, None]}),
    ("workspace has . bytes; this problem needs", {"workspace": lambda c: np.zeros(8, np.uint8)}),
])
def test_refusals(match, change):
    case = Prefill()
    arguments = {"q": case.q, "kv": case.kv, "indices": case.indices, "softmax_scale": 1.0, "dtype": "bf16"}
    arguments |= {name: make(case) for name, make in change.items()}
    with pytest.raises(flashlatent.FlashLatentError, match=match):
        flashlatent.sparse_prefill(**arguments)
