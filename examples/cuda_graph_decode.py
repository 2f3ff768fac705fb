"""A decode loop in a CUDA graph, with torch: plan and all layers are captured once, and each replay follows the
lengths that are then in device memory.

    python examples/cuda_graph_decode.py [--steps 64] [--layers 4] [--batch 8] [--heads 16]

Every step's last layer is compared with attention in float32.
"""

import argparse
import sys

import flashlatent

try:
    import torch
except ImportError:
    sys.exit("cuda_graph_decode: torch is not installed; this example captures its streams")

PAGE_SIZE, QK_DIM, V_DIM, SCALE = 64, 576, 512, 192**-0.5


def attention(q, kv_cache, block_table, cache_seqlens):
    """One query token a request, in float32, request by request."""
    out = torch.zeros(*q.shape[:-1], V_DIM, device=q.device)
    for i, length in enumerate(cache_seqlens.tolist()):
        rows = kv_cache[block_table[i].long()].reshape(-1, QK_DIM)[:length].float()
        out[i, 0] = (q[i, 0].float() @ rows.T * SCALE).softmax(-1) @ rows[:, :V_DIM]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 64), ("layers", 4), ("batch", 8), ("heads", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    cuda = flashlatent.info()["backends"]["cuda"]
    if not cuda["available"]:
        sys.exit(f"cuda_graph_decode: it needs a GPU: {cuda['reason']}")

    torch.manual_seed(0)
    device = torch.device("cuda")
    batch, heads = options.batch, options.heads
    starts = torch.randint(1, 2000, (batch,), dtype=torch.int32)
    max_pages = -(-(2000 + options.steps) // PAGE_SIZE)
    pages = batch * max_pages
    block_table = torch.randperm(pages, dtype=torch.int32).reshape(batch, max_pages).to(device)
    caches = [torch.randn(pages, PAGE_SIZE, 1, QK_DIM, dtype=torch.bfloat16, device=device)
              for _ in range(options.layers)]

    # What the graph reads and writes stays where it is.
    q = torch.empty(batch, 1, heads, QK_DIM, dtype=torch.bfloat16, device=device)
    out = [torch.empty(batch, 1, heads, V_DIM, dtype=torch.bfloat16, device=device) for _ in caches]
    lse = torch.empty(batch, heads, 1, device=device)
    cache_seqlens = starts.to(device)

    def step():
        plans = flashlatent.Step()  # a step's plan, made by its first decode and shared by its layers
        cache_seqlens.add_(1)
        for kv_cache, layer_out in zip(caches, out):
            plans.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=SCALE, out=layer_out, lse=lse)

    q.normal_()
    step()  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    cache_seqlens.copy_(starts)

    worst = 0.0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    milliseconds = 0.0
    for _ in range(options.steps):
        q.normal_()
        begin.record()
        graph.replay()
        end.record()
        expected = attention(q, caches[-1], block_table, cache_seqlens)
        milliseconds += begin.elapsed_time(end)
        worst = max(worst, (out[-1].float() - expected).abs().max().item())
    assert (cache_seqlens.cpu() == starts + options.steps).all()
    print(f"{options.steps} replays, {options.layers} layers, batch {batch}: {milliseconds / options.steps:.3f} ms a "
          f"step, largest difference from float32 {worst:.1e}")
    assert worst < 2e-2, "bf16 outputs of this size are some 2**-8 apart"


if __name__ == "__main__":
    main()
