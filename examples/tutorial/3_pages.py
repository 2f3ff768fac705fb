"""Step 3: a cache that grows.

`PagePool` hands out page numbers, `append_latent` writes new tokens into the cache. Each turn of the loop is a step of
an engine: make room for a token a request, write it, decode.
"""

import numpy as np
from plain import SCALE, attention, largest_error

import flashlatent

rng = np.random.default_rng(3)
PAGES, PAGE_SIZE = 16, 64
pool = flashlatent.PagePool(PAGES, PAGE_SIZE)
kv_cache = np.zeros((PAGES, PAGE_SIZE, 1, 576), np.float16)
prompts = (100, 37)
written = []  # by request: its tokens, kept beside for the comparison


def append(sequence, tokens, first):
    """Writes tokens (n, 576) as the sequence's tokens from `first` on."""
    at = np.arange(first, first + len(tokens))
    slots = np.array(pool.pages(sequence))[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE
    flashlatent.append_latent(tokens[:, :512], tokens[:, 512:], slots, kv_cache)


batch = []
for length in prompts:
    sequence, _ = pool.create([], length=length)
    written.append(rng.standard_normal((length, 576)).astype(np.float16))
    append(sequence, written[-1], 0)
    batch.append(sequence)

for turn in range(60):
    for request, sequence in enumerate(batch):
        token = rng.standard_normal((1, 576)).astype(np.float16)
        pool.append(sequence)
        append(sequence, token, len(written[request]))
        written[request] = np.concatenate([written[request], token])
    block_table, cache_seqlens = pool.write_page_table(batch, max_pages=4)
    q = rng.standard_normal((2, 1, 16, 576)).astype(np.float16)
    out, _ = flashlatent.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=SCALE)
    for request in range(2):
        assert largest_error(out[request, 0], attention(q[request, 0], written[request])[0]) < 2**-9

print(f"lengths {cache_seqlens.tolist()}, pages {[pool.pages(sequence) for sequence in batch]}")
print(f"60 steps right; {pool.stats['used']} of {PAGES} pages in use")
