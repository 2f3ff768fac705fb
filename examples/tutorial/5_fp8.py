"""Step 5: a cache in FP8.

`fp8_656` keeps a token in 656 bytes in place of 1152: the latent in e4m3 with a scale for each 128 numbers, the RoPE
part in bf16. The same calls take it: a cache of bytes, whose last dimension is 656. Queries are bf16, which NumPy has as
16-bit integers.
"""

import numpy as np
from plain import SCALE, attention, from_bf16, largest_error, to_bf16

import flashlatent

rng = np.random.default_rng(5)
PAGES, LENGTH = 8, 500
tokens = to_bf16(rng.standard_normal((LENGTH, 576)))
q = to_bf16(rng.standard_normal((1, 1, 16, 576)))
slots = np.arange(LENGTH)
block_table, cache_seqlens = np.arange(PAGES, dtype=np.int32)[None], np.array([LENGTH], np.int32)

plain = np.zeros((PAGES, 64, 1, 576), np.uint16)
fp8 = np.zeros((PAGES, 64, 1, 656), np.uint8)
for name, kv_cache in (("bf16", plain), ("fp8_656", fp8)):
    flashlatent.append_latent(tokens[:, :512], tokens[:, 512:], slots, kv_cache, dtype="bf16")  # quantises for FP8
    out, _ = flashlatent.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=SCALE, dtype="bf16")
    error = largest_error(from_bf16(out)[0, 0], attention(from_bf16(q)[0, 0], from_bf16(tokens))[0])
    print(f"{name}: {kv_cache.nbytes} bytes, largest error {error:.1e}")

# That error is the format's: beside the numbers that the cache holds the result is as exact as before.
held = from_bf16(flashlatent.convert_cache(fp8, format="bf16")).reshape(-1, 576)[:LENGTH]
error = largest_error(from_bf16(out)[0, 0], attention(from_bf16(q)[0, 0], held)[0])
print(f"beside the numbers that the FP8 cache holds: {error:.1e}")
assert error < 2**-8
