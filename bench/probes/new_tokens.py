"""What writing a layer's new tokens costs, norm and rotation included: us a layer, in CUDA graphs, as JSON.

    python bench/probes/new_tokens.py [--layers 20] [--json FILE]

`all`: RMS norm with a weight, rotation of the last 64 columns, quantisation, store, one launch. `store`: tokens that are
ready. `ratio 4`: as `all`, where a fourth of the tokens end a group. `engine`: norm and rotation by torch, then `store`.
Rows of index keys and queries (64 heads) follow. Each layer has a cache of its own.
"""

import graph_times
import torch

import flashlatent

PAGES, PAGE_SIZE = 512, 64
RECORDS = {(f["name"], f["scales"]): f for f in flashlatent._native._formats() if f["token_bytes"] > 0}


def caches_of(name, scales, count):
    """(caches, their options, columns)"""
    if (name, scales) in RECORDS:
        record = RECORDS[name, scales]
        unit, size = record["page_unit"], record["token_bytes"]
        page = -(-PAGE_SIZE * size // unit) * unit
        caches = [torch.zeros(PAGES, page, dtype=torch.uint8, device="cuda").as_strided(
            (PAGES, PAGE_SIZE, 1, size), (page, size, size, 1)) for _ in range(count)]
        return caches, {"kv_format": name, "scales": scales}, record["dim"]
    dtype = torch.uint8 if name == "e4m3" else torch.bfloat16
    caches = [torch.zeros(PAGES, PAGE_SIZE, 1, 576, dtype=dtype, device="cuda") for _ in range(count)]
    return caches, {}, 576


def measure_latents(name, scales, tokens, layers):
    caches, options, columns = caches_of(name, scales, min(layers, 8))
    latent = torch.randn(tokens, columns, device="cuda", dtype=torch.bfloat16)
    weight = torch.rand(columns, device="cuda", dtype=torch.bfloat16) + 0.5
    angles = torch.rand(70000, 32, device="cuda") * 6.28
    table = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.randint(0, 60000, (tokens,), device="cuda")
    ends = positions // 4 * 4 + torch.arange(tokens, device="cuda") % 4
    slots = torch.randperm(PAGES * PAGE_SIZE, device="cuda")[:tokens]
    edges = {"norm": 1e-6, "norm_weight": weight, "table": table}

    def store(cache, rows=latent):
        flashlatent.append_latent(rows, None, slots, cache, **options)

    def engine(cache):
        x = torch.nn.functional.rms_norm(latent, (columns,), weight, 1e-6)
        angle = table[positions]
        even, odd, cos, sin = x[:, -64::2].float(), x[:, -63::2].float(), angle[:, :32], angle[:, 32:]
        x[:, -64:] = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(1).to(x.dtype)
        store(cache, x)

    ways = {"all": lambda cache: flashlatent.append_latent(latent, None, slots, cache, positions=positions, **edges, **options),
            "ratio 4": lambda cache: flashlatent.append_latent(latent, None, slots, cache, positions=ends, ratio=4, **edges,
                                                               **options),
            "store": store, "engine": engine}
    return {way: graph_times.time_of([lambda cache=caches[i % len(caches)], call=call: call(cache) for i in range(layers)])
            for way, call in ways.items()}


def measure_index(index_format, tokens, layers):
    size = 132 if index_format == "fp8_132" else 68
    caches = [torch.zeros(PAGES, PAGE_SIZE * size, dtype=torch.uint8, device="cuda") for _ in range(min(layers, 8))]
    keys = torch.randn(tokens, 128, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(tokens, 64, 128, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(tokens, 64, device="cuda", dtype=torch.bfloat16)
    weight, bias = torch.rand(2, 128, device="cuda") + 0.5
    table = torch.rand(70000, 64, device="cuda")
    positions = torch.randint(0, 60000, (tokens,), device="cuda")
    slots = torch.randperm(PAGES * PAGE_SIZE, device="cuda")[:tokens]
    rotate = {"positions": positions, "table": table}
    options = {"index_format": index_format, "page_size": PAGE_SIZE}
    made = flashlatent.quantize_index_queries(q, weights, index_format=index_format, **rotate)
    into = {"codes": made[0], "scales": made[1], "out_weights": made[2]}
    ways = {"keys V4": lambda cache: flashlatent.append_index_keys(keys, slots, cache, norm=1e-6, norm_weight=weight, **rotate,
                                                                   **options),
            "keys V3.2": lambda cache: flashlatent.append_index_keys(
                keys, slots, cache, norm=1e-6, norm_weight=weight, norm_bias=bias, pairs="neox", rotary_columns="first",
                **rotate, **options),
            "keys, store": lambda cache: flashlatent.append_index_keys(keys, slots, cache, **options),
            "queries": lambda cache: flashlatent.quantize_index_queries(q, weights, index_format=index_format, **rotate, **into)}
    return {way: graph_times.time_of([lambda cache=caches[i % len(caches)], call=call: call(cache) for i in range(layers)])
            for way, call in ways.items()}


def main():
    arguments = graph_times.arguments_of(__doc__)
    results = []
    for name, scales in [*RECORDS, ("e4m3", None), ("bf16", None)]:
        for tokens in (1, 8, 64, 128):
            results.append({"format": name, "scales": scales, "tokens": tokens,
                            "us": measure_latents(name, scales, tokens, arguments.layers)})
            print(results[-1], flush=True)
    for index_format in ("fp8_132", "mxfp4_68"):
        for tokens in (1, 8, 64, 128):
            results.append({"format": index_format, "tokens": tokens, "us": measure_index(index_format, tokens, arguments.layers)})
            print(results[-1], flush=True)
    graph_times.write(arguments, results)


if __name__ == "__main__":
    main()
