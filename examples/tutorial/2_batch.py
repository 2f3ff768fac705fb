"""Step 2: a batch, a plan, and layers.

A plan says who does which blocks of which request. An engine makes it once per step, since all layers have the same
lengths: `Step` keeps the plan of its first call for the others. A long request is cut where that balances the work.
"""

import numpy as np
from plain import SCALE, attention, largest_error

import flashlatent

rng = np.random.default_rng(2)
LAYERS, PAGES, MAX_PAGES = 3, 80, 64
cache_seqlens = np.array([4000, 70, 0, 500], np.int32)  # one request has no tokens
block_table = np.full((4, MAX_PAGES), -1, np.int32)
pages = iter(rng.permutation(PAGES))
for request, length in enumerate(cache_seqlens):
    for column in range(-(-length // 64)):
        block_table[request, column] = next(pages)

problem = flashlatent.Problem(batch=4, heads=16, max_pages=MAX_PAGES, softmax_scale=SCALE)
plan = flashlatent.describe_plan(problem, cache_seqlens.tolist(), workers=4)
for number, part in enumerate(plan["parts"]):
    work = [f"request {s['request']} blocks {s['blocks'][0]} to {s['blocks'][1] - 1}" for s in part["segments"]
            if s["blocks"][0] < s["blocks"][1]]
    print(f"part {number}: {', '.join(work)}")
print(f"largest part: {plan['imbalance']:.2f} times an equal share")

step = flashlatent.Step()  # a new one in each step
for layer in range(LAYERS):
    kv_cache = rng.standard_normal((PAGES, 64, 1, 576)).astype(np.float16)
    q = rng.standard_normal((4, 1, 16, 576)).astype(np.float16)
    out, lse = step.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=SCALE)
    worst = 0.0
    for request, length in enumerate(cache_seqlens):
        tokens = kv_cache[block_table[request]].reshape(-1, 576)[:length]
        worst = max(worst, largest_error(out[request, 0], attention(q[request, 0], tokens)[0]))
    print(f"layer {layer}: largest error {worst:.1e}; lse of the empty request {lse[2, 0, 0]}")
    assert worst < 2**-9
