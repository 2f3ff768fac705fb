"""Step 7: all of it in a CUDA graph (NVIDIA Hopper, with torch).

8 requests share a prefix of 1,024 tokens in an FP8 cache of 4 layers. A step writes each request's new token and
decodes, layer by layer. It is captured once: the plan is captured, too, and each replay plans for the lengths and page
table that are then in device memory. Between replays the host only asks the pool for pages and copies four small
arrays.
"""

import sys

import numpy as np
from plain import SCALE, attention, largest_error

import flashlatent

cuda = flashlatent.info()["backends"]["cuda"]
if not cuda["available"]:
    print(f"7_graph: this step needs a GPU, and is left out: {cuda['reason']}")
    sys.exit(0)
try:
    import torch
except ImportError:
    print("7_graph: this step needs torch, and is left out")
    sys.exit(0)

torch.manual_seed(7)
LAYERS, BATCH, HEADS, PAGE_SIZE, PAGES, MAX_PAGES, STEPS = 4, 8, 16, 64, 64, 24, 100
PREFIX, QUESTION = 1024, 40
device = torch.device("cuda")
pool = flashlatent.PagePool(PAGES, PAGE_SIZE)
caches = [torch.zeros(PAGES, PAGE_SIZE, 1, 656, dtype=torch.uint8, device=device) for _ in range(LAYERS)]


def random(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device=device)


def slots_of(sequence, first, count):
    at = np.arange(first, first + count)
    return np.array(pool.pages(sequence))[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE


# The prompts: the prefix is written once.
contents = list(range(PREFIX // PAGE_SIZE))
batch = []
for _ in range(BATCH):
    sequence, found = pool.create(contents, length=PREFIX + QUESTION)
    first = found * PAGE_SIZE
    slots = torch.from_numpy(slots_of(sequence, first, PREFIX + QUESTION - first)).to(device)
    for kv_cache in caches:
        flashlatent.append_latent(random(len(slots), 512), random(len(slots), 64), slots, kv_cache)
    pool.commit(sequence, contents)
    batch.append(sequence)
print(f"{BATCH} requests of {PREFIX + QUESTION} tokens in {pool.stats['used']} pages")

# What the graph reads and writes stays where it is.
q, latent, rope = random(LAYERS, BATCH, 1, HEADS, 576), random(LAYERS, BATCH, 512), random(LAYERS, BATCH, 64)
out = torch.empty(LAYERS, BATCH, 1, HEADS, 512, dtype=torch.bfloat16, device=device)
lse = torch.empty(LAYERS, BATCH, HEADS, 1, device=device)
slot_mapping = torch.full((BATCH,), -1, dtype=torch.int64, device=device)  # -1: nothing is written
block_table = torch.zeros(BATCH, MAX_PAGES, dtype=torch.int32, device=device)
cache_seqlens = torch.zeros(BATCH, dtype=torch.int32, device=device)


def step():
    plans = flashlatent.Step()
    for layer, kv_cache in enumerate(caches):
        flashlatent.append_latent(latent[layer], rope[layer], slot_mapping, kv_cache)
        plans.decode(q[layer], kv_cache, block_table, cache_seqlens, softmax_scale=SCALE, out=out[layer], lse=lse[layer])


step()  # loads the kernels
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()

begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
milliseconds = 0.0
for _ in range(STEPS):
    for tensor in (q, latent, rope):
        tensor.normal_()
    slots = []
    for sequence in batch:
        pool.append(sequence)
        slots.append(slots_of(sequence, pool.length(sequence) - 1, 1)[0])
    host_table, host_lengths = pool.write_page_table(batch, MAX_PAGES)
    slot_mapping.copy_(torch.tensor(slots))
    block_table.copy_(torch.from_numpy(host_table))
    cache_seqlens.copy_(torch.from_numpy(host_lengths))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    milliseconds += begin.elapsed_time(end)

held = flashlatent.convert_cache(caches[-1], format="bf16").double().cpu().numpy()
worst = 0.0
for request, length in enumerate(host_lengths.tolist()):
    tokens = held[host_table[request]].reshape(-1, 576)[:length]
    expected, _ = attention(q[-1, request, 0].double().cpu(), tokens)
    worst = max(worst, largest_error(out[-1, request, 0].double().cpu(), expected))
print(f"{STEPS} steps of {LAYERS} layers: {milliseconds / STEPS:.3f} ms a step; lengths {host_lengths[0]}, "
      f"{pool.stats['used']} of {PAGES} pages in use")
print(f"largest error of the last layer: {worst:.1e}")
assert worst < 2**-6
