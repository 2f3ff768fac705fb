"""Step 1: one request, on the CPU.

16 heads of an MLA model attend to 150 cached tokens. A token is one row of 576 numbers that all heads share: 512 of
the latent, which are the value, too, and 64 with RoPE.
"""

import numpy as np
from plain import SCALE, attention, largest_error

import flashlatent

rng = np.random.default_rng(1)
q = rng.standard_normal((1, 1, 16, 576)).astype(np.float16)  # (batch, query tokens, heads, 576)
kv_cache = rng.standard_normal((4, 64, 1, 576)).astype(np.float16)  # (pages, page_size, KV heads, 576)
block_table = np.array([[2, 0, 3]], np.int32)  # the request's pages, in the order of its tokens
cache_seqlens = np.array([150], np.int32)  # tokens: two pages of 64, and 22 of page 3

out, lse = flashlatent.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=SCALE)

tokens = kv_cache[block_table[0]].reshape(-1, 576)[:150]
expected, expected_lse = attention(q[0, 0], tokens)
print(f"out {out.shape}, lse {lse.shape}")
error, lse_error = largest_error(out[0, 0], expected), largest_error(lse[0, :, 0], expected_lse)
print(f"largest error of out {error:.1e}, of lse {lse_error:.1e}")
assert error < 2**-9
