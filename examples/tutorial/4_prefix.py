"""Step 4: requests that share a prefix.

Three requests begin with the same 256 tokens. The pool knows full pages by their contents: `commit` registers them,
and `create` finds them, so that the prefix is in the cache once. `fork` makes a second answer to a prompt; who writes
to a page that both have gets a copy of it.
"""

import numpy as np
from plain import SCALE, attention, largest_error

import flashlatent

rng = np.random.default_rng(4)
PAGES, PAGE_SIZE, PREFIX = 32, 64, 256
pool = flashlatent.PagePool(PAGES, PAGE_SIZE)
kv_cache = np.zeros((PAGES, PAGE_SIZE, 1, 576), np.float16)
prefix = rng.standard_normal((PREFIX, 576)).astype(np.float16)
contents = [1001, 1002, 1003, 1004]  # an id for each full page of the prefix, such as a hash of its tokens


def append(sequence, tokens, first):
    at = np.arange(first, first + len(tokens))
    slots = np.array(pool.pages(sequence))[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE
    flashlatent.append_latent(tokens[:, :512], tokens[:, 512:], slots, kv_cache)


batch, written = [], []
for question in (30, 50, 70):
    tokens = np.concatenate([prefix, rng.standard_normal((question, 576)).astype(np.float16)])
    sequence, found = pool.create(contents, length=len(tokens))
    print(f"prompt of {len(tokens)} tokens: {found} of its pages are in the cache already")
    append(sequence, tokens[found * PAGE_SIZE:], found * PAGE_SIZE)
    pool.commit(sequence, contents)
    batch.append(sequence)
    written.append(tokens)

# A second answer to the last prompt, which ends within a page.
batch.append(pool.fork(batch[-1]))
written.append(written[-1])
for request in (2, 3):
    token = rng.standard_normal((1, 576)).astype(np.float16)
    copy = pool.append(batch[request])  # from_page, to_page, tokens
    if copy:
        flashlatent.copy_pages(kv_cache, kv_cache, np.array([copy[:2]], np.int32))
        print(f"request {request} writes to a shared page: page {copy[0]} is copied to {copy[1]}")
    append(batch[request], token, len(written[request]))
    written[request] = np.concatenate([written[request], token])

block_table, cache_seqlens = pool.write_page_table(batch, max_pages=8)
q = rng.standard_normal((4, 1, 16, 576)).astype(np.float16)
out, _ = flashlatent.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=SCALE)
worst = max(largest_error(out[i, 0], attention(q[i, 0], written[i])[0]) for i in range(4))
alone = sum(-(-length // PAGE_SIZE) for length in cache_seqlens.tolist())
print(f"{pool.stats['used']} pages in use, {alone} without sharing; largest error {worst:.1e}")
assert worst < 2**-9
