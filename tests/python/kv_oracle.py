"""Keys and values apart, in NumPy: attention in float64, layouts, e4m3, and random cases of them."""

import math

import numpy as np

from oracle import bf16_bits, bf16_values, e4m3_values, weigh


def e4m3_codes(x, scale=1.0):
    """x / scale rounded to the nearest e4m3, ties to even: 448 beyond it, NaN for NaN and infinity."""
    x = np.asarray(x, np.float64) / scale
    magnitude = np.abs(np.where(np.isfinite(x), x, 0))
    step = 2.0**(np.maximum(np.floor(np.log2(np.maximum(magnitude, 2.0**-20))), -6) - 3)
    magnitude = np.minimum(np.rint(magnitude / step) * step, 448)
    codes = np.searchsorted(e4m3_values()[:127], magnitude).astype(np.uint8)
    codes |= np.signbit(x).astype(np.uint8) << 7
    return np.where(np.isfinite(x), codes, np.uint8(0x7F))


def pack(keys, values):
    """Separate (pages, page_size, h_kv, d) packed: (pages, h_kv, d / x, page_size, x), (pages, h_kv, d, page_size)"""
    pages, page_size, heads, d = keys.shape
    x = 16 // keys.itemsize
    keys = keys.reshape(pages, page_size, heads, d // x, x).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(keys), np.ascontiguousarray(values.transpose(0, 2, 3, 1))


def to_dtype(x, dtype):
    return x.astype(np.float16) if dtype == "fp16" else bf16_bits(x)


def to_numbers(array, dtype="fp16"):
    """Elements of any of the dtypes as float64; uint8 is e4m3."""
    if array.dtype == np.uint8:
        return e4m3_values()[array]
    return (bf16_values(array) if array.dtype == np.uint16 else array).astype(np.float64)


def sees(length, s_q, t, causal, window):
    """The tokens that query token t of s_q sees."""
    end = length - s_q + t + 1 if causal else length
    return range(max(0, end - window) if window else 0, max(0, end))


class KvCase:
    """Random inputs; pages are permuted, and what no request uses is NaN. `tokens` may be a list, one number a
    request: then q is ragged."""

    def __init__(self, lengths, heads=4, tokens=1, kv_heads=2, d=64, v_dim=None, page_size=16, dtype="fp16",
                 layout="separate", e4m3=False, seed=0):
        rng = np.random.default_rng(seed)
        v_dim = v_dim or d
        self.scale, self.dtype, self.layout, self.e4m3 = d**-0.5, dtype, layout, e4m3
        self.tokens = list(tokens) if isinstance(tokens, (list, tuple)) else None
        per_request = self.tokens or [tokens] * len(lengths)
        needed = [-(-length // page_size) for length in lengths]
        pages = rng.permutation(sum(needed) + 3).astype(np.int32)
        self.block_table = np.full((len(lengths), max(needed + [1]) + 1), 1 << 30, np.int32)
        self.cache_seqlens = np.array(lengths, np.int32)
        keys, values = (np.full((len(pages), page_size, kv_heads, width), np.nan) for width in (d, v_dim))
        at = 0
        for i, length in enumerate(lengths):
            self.block_table[i, :needed[i]] = pages[at:at + needed[i]]
            at += needed[i]
            for n in range(length):
                where = self.block_table[i, n // page_size], n % page_size
                keys[where], values[where] = rng.standard_normal((kv_heads, d)), rng.standard_normal((kv_heads, v_dim))
        round_to = e4m3_codes if e4m3 else lambda x: to_dtype(x.astype(np.float32), dtype)
        self.separate = round_to(keys), round_to(values)
        self.key_cache, self.value_cache = pack(*self.separate) if layout == "packed" else self.separate
        self.queries = [to_dtype(rng.standard_normal((n, heads, d), np.float32), dtype) for n in per_request]
        self.q = np.concatenate(self.queries) if self.tokens else np.stack(self.queries)
        self.begins = np.cumsum([0, *per_request]).astype(np.int32)

    def arrays(self):
        return [self.q, self.key_cache, self.value_cache, self.block_table, self.cache_seqlens]

    def expected(self, causal=False, window=0, soft_cap=0.0, alibi_slopes=None, key_scale=(1,), value_scale=(1,),
                 attn_sink=None):
        """[(out (tokens, h_q, d_v), lse (h_q, tokens))], one a request."""
        keys, values = map(to_numbers, self.separate)
        page_size, kv_heads = keys.shape[1:3]
        key_scale, value_scale = (np.broadcast_to(scale, kv_heads) for scale in (key_scale, value_scale))
        results = []
        for i, q in enumerate(self.queries):
            s_q, heads, _ = q.shape
            out, lse = np.zeros((s_q, heads, values.shape[-1])), np.zeros((heads, s_q))
            for t in range(s_q):
                seen = np.array(sees(int(self.cache_seqlens[i]), s_q, t, causal, window), int)
                pages, offsets = self.block_table[i, seen // page_size], seen % page_size
                live = pages < len(keys)
                seen, pages, offsets = seen[live], pages[live], offsets[live]
                for h in range(heads):
                    k = h // (heads // kv_heads)
                    scores = keys[pages, offsets, k] @ to_numbers(q[t, h]) * self.scale * key_scale[k]
                    if soft_cap:
                        scores = soft_cap * np.tanh(scores / soft_cap)
                    if alibi_slopes is not None:
                        scores = scores + alibi_slopes[h] * (seen - (int(self.cache_seqlens[i]) - 1.0))
                    out[t, h], lse[h, t] = weigh(scores, values[pages, offsets, k] * value_scale[k],
                                                 None if attn_sink is None else attn_sink[h])
            results.append((out, lse))
        return results

    def check(self, out, lse, **options):
        """out and lse as float arrays."""
        # As in oracle.Case: out is rounded once to the dtype, the weights before it once more.
        tolerance = 2**-7 if self.dtype == "bf16" else 2**-10
        for i, (expected_out, expected_lse) in enumerate(self.expected(**options)):
            n = len(expected_out)
            got = out[self.begins[i]:self.begins[i + 1]] if self.tokens else out[i]
            np.testing.assert_allclose(got, expected_out, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(lse[i, :, :n], expected_lse, rtol=1e-5, atol=1e-5)
            assert (lse[i, :, n:] == -math.inf).all()
