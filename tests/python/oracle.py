"""Decode attention in float64, as plain as can be, and random cases for it."""

import math

import numpy as np


def bf16_bits(x):
    """float32 rounded to bf16 (to nearest, ties to even), as uint16; NaN stays NaN."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def e4m3_values():
    """All 256 numbers of OCP FP8 e4m3."""
    codes = np.arange(256)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = codes >> 3 & 0xF, codes & 7
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0**(exponent - 7.0))
    return sign * np.where((codes & 0x7F) == 0x7F, np.nan, values)


def weigh(scores, values, sink=None):
    """Values by the softmax of their scores: (out, lse)."""
    if len(scores) == 0:
        return np.zeros(values.shape[-1]), -math.inf
    largest = scores.max()
    weights = np.exp(scores - largest)
    lse = largest + math.log(weights.sum())
    out = weights @ values.astype(np.float64) / weights.sum()
    if sink is not None:
        out /= 1 + math.exp(sink - lse)
    return out, lse


def attend(q, rows, v_dim, scale, sink=None):
    """One query row over the cached rows that it sees: (out, lse)."""
    if len(rows) == 0:
        return np.zeros(v_dim), -math.inf
    return weigh(rows.astype(np.float64) @ q.astype(np.float64) * scale, rows[:, :v_dim], sink)


def decode(q, kv_cache, block_table, cache_seqlens, v_dim, scale, causal=False, sink=None):
    """q (batch, s_q, h_q, d), kv_cache (pages, page_size, h_kv, d), both as numbers."""
    batch, s_q, h_q, _ = q.shape
    pages, page_size, h_kv, _ = kv_cache.shape
    out = np.zeros((batch, s_q, h_q, v_dim))
    lse = np.full((batch, h_q, s_q), -math.inf)
    for i in range(batch):
        length = int(cache_seqlens[i])
        for t in range(s_q):
            sees = length - s_q + t + 1 if causal else length
            tokens = [(block_table[i, n // page_size], n % page_size) for n in range(sees)]
            tokens = [(page, offset) for page, offset in tokens if 0 <= page < pages]
            for h in range(h_q):
                head = h // (h_q // h_kv)
                rows = np.array([kv_cache[page, offset, head] for page, offset in tokens])
                out[i, t, h], lse[i, h, t] = attend(q[i, t, h], rows, v_dim, scale,
                                                    None if sink is None else sink[h])
    return out, lse


class Case:
    """Random inputs; pages are permuted, and what no request uses is NaN."""

    def __init__(self, lengths, heads=4, tokens=1, kv_heads=1, d=96, v_dim=64, page_size=16, dtype="fp16", seed=0):
        rng = np.random.default_rng(seed)
        self.scale, self.v_dim, self.dtype = d**-0.5, v_dim, dtype
        needed = [-(-length // page_size) for length in lengths]
        self.q = rng.standard_normal((len(lengths), tokens, heads, d), np.float32)
        cache = np.full((sum(needed) + 3, page_size, kv_heads, d), np.nan, np.float32)
        pages = rng.permutation(len(cache)).astype(np.int32)
        self.block_table = np.full((len(lengths), max(needed + [1]) + 1), 1 << 30, np.int32)
        self.cache_seqlens = np.array(lengths, np.int32)
        at = 0
        for i, length in enumerate(lengths):
            self.block_table[i, :needed[i]] = pages[at:at + needed[i]]
            at += needed[i]
            for n in range(length):
                cache[self.block_table[i, n // page_size], n % page_size] = rng.standard_normal((kv_heads, d))
        if dtype == "fp16":
            self.q, self.kv_cache = self.q.astype(np.float16), cache.astype(np.float16)
        else:
            self.q, self.kv_cache = bf16_bits(self.q), bf16_bits(cache)

    def numbers(self, array):
        return bf16_values(array) if array.dtype == np.uint16 else array

    def arguments(self):
        return self.q, self.kv_cache, self.block_table, self.cache_seqlens

    def options(self):
        options = {"softmax_scale": self.scale, "v_dim": self.v_dim}
        return options if self.dtype == "fp16" else {**options, "dtype": "bf16"}

    def expected(self, **options):
        return decode(self.numbers(self.q), self.numbers(self.kv_cache), self.block_table, self.cache_seqlens,
                      self.v_dim, self.scale, **options)

    def check(self, out, lse, **options):
        expected_out, expected_lse = self.expected(**options)
        # Outputs of unit scale are rounded once to the dtype (half an ulp: 2**-9 of bf16, 2**-12 of fp16), the
        # weights before them once more.
        tolerance = 2**-7 if self.dtype == "bf16" else 2**-10
        np.testing.assert_allclose(self.numbers(np.asarray(out)), expected_out, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(np.asarray(lse), expected_lse, rtol=1e-5, atol=1e-5)
