"""A first call, from NumPy on a CPU: two requests, 16 heads of DeepSeek-V2-Lite, pages of 64 tokens.

    pip install .  &&  python examples/first_call.py
"""

import numpy as np

import flashlatent

rng = np.random.default_rng(0)
q = rng.standard_normal((2, 1, 16, 576)).astype(np.float16)  # (batch, s_q, heads, 512 latent + 64 RoPE)
kv_cache = rng.standard_normal((8, 64, 1, 576)).astype(np.float16)  # (pages, page_size, KV heads, 576)
block_table = np.array([[5, 0, 2], [7, -1, -1]], np.int32)  # whose pages are whose
cache_seqlens = np.array([150, 40], np.int32)

out, lse = flashlatent.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=192**-0.5)
print(f"out {out.shape} {out.dtype}, lse {lse.shape} {lse.dtype}")

# The same in plain NumPy.
worst = 0.0
for i, length in enumerate(cache_seqlens):
    rows = kv_cache[block_table[i, :-(-length // 64)]].reshape(-1, 576)[:length].astype(np.float64)
    scores = q[i, 0].astype(np.float64) @ rows.T * 192**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ rows[:, :512] / weights.sum(-1, keepdims=True)
    worst = max(worst, np.abs(out[i, 0] - expected).max())
print(f"largest difference from NumPy in float64: {worst:.1e}")
assert worst < 2**-9, "fp16 outputs of this size are 2**-11 apart"
