"""What the edges of DeepSeek V4's layer cost around its attention: us a layer, in CUDA graphs, as JSON.

    python bench/probes/edges.py [--layers 20] [--json FILE]

A layer is query norm and rotation, attention over 128 + 512 tokens named by indices, inverse rotation of the output and
its cast to e4m3 with a scale for 128 columns. Each layer has caches of its own. `attention` leaves the edges out.
"""

import graph_times
import torch

import flashlatent
import flashlatent.torch as operators

PAGES, PAGE_SIZE, WINDOW, EXTRA = 2048, 64, 128, 512


def measure(batch, heads, layers):
    device = "cuda"
    caches = []
    for _ in range(min(layers, 8)):
        plain = torch.randn(PAGES, PAGE_SIZE, 1, 512, device=device, dtype=torch.bfloat16)
        caches.append(flashlatent.convert_cache(plain, format="fp8_584"))
    del plain
    q = torch.randn(batch, heads, 512, device=device, dtype=torch.bfloat16)
    angles = torch.rand(70000, 32, device=device) * 6.28
    table = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.randint(0, 60000, (batch,), device=device)
    slots = PAGES * PAGE_SIZE
    indices, extra = (torch.randint(0, slots, (batch, 1, n), dtype=torch.int32, device=device) for n in (WINDOW, EXTRA))
    rotation = {"positions": positions, "table": table}
    groups = min(8, heads)
    step = flashlatent.Step()

    def attend(q, cache):
        return step.decode(q[:, None], cache, indices=indices, extra_kv_cache=cache, extra_indices=extra,
                           softmax_scale=0.04)[0]

    def whole(cache):
        out = attend(operators.prepare_queries(q, norm=1e-6, **rotation), cache)
        operators.finish_outputs(out[:, 0], groups=groups, **rotation)

    out = torch.randn(batch, heads, 512, device=device, dtype=torch.bfloat16)
    ways = {"attention": lambda cache: attend(q, cache), "whole": whole,
            "queries": lambda cache: operators.prepare_queries(q, norm=1e-6, **rotation),
            "outputs": lambda cache: operators.finish_outputs(out, groups=groups, **rotation)}
    times = {name: graph_times.time_of([lambda cache=caches[i % len(caches)], way=way: way(cache) for i in range(layers)])
             for name, way in ways.items()}
    return {"batch": batch, "heads": heads, **{f"{name}_us": us for name, us in times.items()},
            "ratio": round(times["whole"] / times["attention"], 3)}


def main():
    arguments = graph_times.arguments_of(__doc__)
    results = []
    for heads in (16, 64, 128):
        for batch in (1, 8, 64, 128):
            results.append(measure(batch, heads, arguments.layers))
            print(results[-1], flush=True)
    graph_times.write(arguments, results)


if __name__ == "__main__":
    main()
