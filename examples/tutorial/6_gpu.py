"""Step 6: the same on a GPU (NVIDIA Hopper, with torch).

Tensors on a GPU are computed there, on torch's current stream; no argument changes. A call only enqueues work.
"""

import sys

from plain import SCALE, attention, largest_error

import flashlatent

cuda = flashlatent.info()["backends"]["cuda"]
if not cuda["available"]:
    print(f"6_gpu: this step needs a GPU, and is left out: {cuda['reason']}")
    sys.exit(0)
try:
    import torch
except ImportError:
    print("6_gpu: this step needs torch, and is left out")
    sys.exit(0)

torch.manual_seed(6)
BATCH, HEADS, LENGTH, PAGE_SIZE = 64, 16, 4096, 64
max_pages = LENGTH // PAGE_SIZE
device = torch.device("cuda")
kv_cache = torch.randn(BATCH * max_pages, PAGE_SIZE, 1, 576, dtype=torch.bfloat16, device=device)
block_table = torch.randperm(BATCH * max_pages, device=device).to(torch.int32).reshape(BATCH, max_pages)
cache_seqlens = torch.full((BATCH,), LENGTH, dtype=torch.int32, device=device)
q = torch.randn(BATCH, 1, HEADS, 576, dtype=torch.bfloat16, device=device)

problem = flashlatent.Problem.of_arrays(q, kv_cache, block_table, softmax_scale=SCALE)
print(next(line for line in flashlatent.explain(problem, device="cuda").splitlines() if ": picked" in line))

step = flashlatent.Step()
out, lse = step.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=SCALE)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
for _ in range(100):
    step.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=SCALE, out=out, lse=lse)
end.record()
torch.cuda.synchronize()
milliseconds = begin.elapsed_time(end) / 100
bytes_read = BATCH * LENGTH * 576 * 2
print(f"{BATCH} requests of {LENGTH} tokens: {milliseconds:.3f} ms a call, {bytes_read / milliseconds / 1e9:.2f} TB/s")

tokens = kv_cache[block_table[0].long()].reshape(-1, 576)
expected, _ = attention(q[0, 0].double().cpu(), tokens.double().cpu())
error = largest_error(out[0, 0].double().cpu(), expected)
print(f"largest error of request 0: {error:.1e}")
assert error < 2**-6
