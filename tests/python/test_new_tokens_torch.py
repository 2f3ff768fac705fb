"""New tokens, index keys and index queries as torch operators, on every device: the bits of NumPy's calls, in bf16 too."""

import pytest

torch = pytest.importorskip("torch")

import flashlatent
import flashlatent.torch as operators
from test_torch import DEVICES

pytestmark = pytest.mark.parametrize("device", DEVICES)
RECORDS = {(f["name"], f["scales"]): f for f in flashlatent._native._formats() if f["token_bytes"] > 0}
TARGETS = [*RECORDS, ("e4m3", None), (torch.bfloat16, None), (torch.float16, None)]
PAGES, PAGE_SIZE = 5, 16


def empty_cache(target, dim, device):
    """(a cache of 0xA5, its options)"""
    name, scales = target
    if target in RECORDS:
        record = RECORDS[target]
        unit, size = record["page_unit"], record["token_bytes"]
        page = -(-PAGE_SIZE * size // unit) * unit
        memory = torch.full((PAGES, page), 0xA5, dtype=torch.uint8, device=device)
        view = memory.as_strided((PAGES, PAGE_SIZE, 1, size), (page, size, size, 1))
        return memory, view, {"kv_format": name, "scales": scales}
    if name == "e4m3":
        memory = torch.full((PAGES, PAGE_SIZE, 1, dim), 0xA5, dtype=torch.uint8, device=device)
        return memory, memory, {"kv_format": "e4m3", "kv_scale": torch.tensor([0.03], device=device)}
    memory = torch.full((PAGES, PAGE_SIZE, 1, dim), 3.0, dtype=name, device=device)
    return memory, memory, {}


def table_of(columns, generator, dtype, interleaved):
    angles = torch.rand(60, columns // 2, generator=generator) * 6.28
    both = torch.stack([angles.cos(), angles.sin()], 2).flatten(1) if interleaved else \
        torch.cat([angles.cos(), angles.sin()], 1)
    return both.to(dtype)


def rows_of(tokens, columns, dtype, generator):
    x = torch.randn(tokens, columns, generator=generator) * 2.0**torch.randint(-14, 8, (tokens, 1), generator=generator)
    x[0, :columns // 2] = 0
    x[1, 5], x[1, 40] = float("inf"), 1e30 if dtype != torch.float16 else 6e4
    return x.to(dtype)


def to(device, options):
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tokens_are_those_of_the_host(device, target, dtype):
    generator = torch.Generator().manual_seed(3)
    dim = RECORDS[target]["dim"] if target in RECORDS else 512
    for number, (norm, pairs, interleaved, table_dtype, split, ratio) in enumerate([
            ("none", "gptj", False, torch.float32, False, 1), ("rms", "gptj", False, torch.float32, False, 4),
            ("rms", "neox", False, torch.bfloat16, True, 1), ("layer", "neox", True, torch.float32, False, 1),
            ("layer", "gptj", True, torch.bfloat16, True, 2), ("rms", None, False, None, False, 1)]):
        tokens = 17
        x = rows_of(tokens, dim, dtype, generator)
        slots = torch.randperm(PAGES * PAGE_SIZE, generator=generator)[:tokens]
        slots[3] = -1
        width = dim - 64 if split else dim
        options = {"ratio": ratio, "rounding": "once" if number == 3 else "engine"}
        if norm != "none":
            options |= {"norm": 1e-6, "norm_weight": torch.rand(width, generator=generator).to(dtype) + 0.5}
        if norm == "layer":
            options["norm_bias"] = torch.randn(width, generator=generator)
        if pairs is not None:
            options |= {"positions": torch.randint(0, 60, (tokens,), generator=generator), "pairs": pairs,
                        "table": table_of(64, generator, table_dtype, interleaved),
                        "table_layout": "interleaved" if interleaved else "halves"}
        results = []
        for where, append in ((device, operators.append_latent), ("cpu", flashlatent.append_latent)):
            memory, cache, said = empty_cache(target, dim, where)
            there = x.to(where)
            latent, rope = (there[:, :width], there[:, width:]) if split else (there, None)
            append(latent, rope, slots.to(where), cache, **said, **to(where, options))
            results.append(memory.cpu().view(torch.uint8))  # NaN has one payload
        found, wanted = results
        assert torch.equal(found, wanted), (number, (found != wanted).sum())


def test_any_strides(device):
    generator = torch.Generator().manual_seed(4)
    wide = rows_of(8, 531, torch.bfloat16, generator)
    table = torch.cat([table_of(64, generator, torch.float32, False), torch.zeros(60, 3)], 1)[:, :64]
    options = {"norm": 1e-6, "norm_weight": torch.rand(515, generator=generator)[3:],
               "positions": torch.arange(16, dtype=torch.int32)[::2], "table": table, "pairs": "neox"}
    results = []
    for where in (device, "cpu"):
        memory, cache, said = empty_cache(("mxfp8_528", "page"), 512, where)
        strided = torch.zeros(8, 600, dtype=torch.bfloat16, device=where)[:, 3:515]
        strided.copy_(wide[:, 7:519].to(where))
        flashlatent.append_latent(strided, None, torch.arange(8, device=where), cache, **said, **to(where, options))
        results.append(memory.cpu())
    assert torch.equal(*results)


@pytest.mark.parametrize("index_format", ["fp8_132", "mxfp4_68"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_keys_are_those_of_the_host(device, index_format, dtype):
    generator = torch.Generator().manual_seed(5)
    for norm, pairs, columns, ratio, tokens in (("none", None, "last", 1, 5), ("layer", "neox", "first", 1, 33),
                                                ("rms", "gptj", "last", 4, 33), ("rms", "neox", "last", 1, 7),
                                                ("layer", "gptj", "first", 2, 2)):
        keys = rows_of(tokens, 128, dtype, generator)
        slots = torch.randperm(PAGES * PAGE_SIZE, generator=generator)[:tokens].int()
        slots[1] = -1
        options = {"index_format": index_format, "page_size": PAGE_SIZE, "ratio": ratio}
        if norm != "none":
            options |= {"norm": 1e-6, "norm_weight": torch.rand(128, generator=generator) + 0.5}
        if norm == "layer":
            options["norm_bias"] = torch.randn(128, generator=generator)
        if pairs is not None:
            options |= {"positions": torch.randint(0, 60, (tokens,), generator=generator), "pairs": pairs,
                        "table": table_of(64, generator, torch.float32, False), "rotary_columns": columns}
        caches = []
        for where, append in ((device, operators.append_index_keys), ("cpu", flashlatent.append_index_keys)):
            caches.append(torch.full((PAGES, PAGE_SIZE * (132 if index_format == "fp8_132" else 68)), 0xA5,
                                     dtype=torch.uint8, device=where))
            append(keys.to(where), slots.to(where), caches[-1], **to(where, options))
        assert torch.equal(caches[0].cpu(), caches[1])


@pytest.mark.parametrize("index_format", ["fp8_132", "mxfp4_68"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_are_those_of_the_host(device, index_format, dtype):
    generator = torch.Generator().manual_seed(6)
    for tokens, heads, pairs, columns, weight_dtype in ((1, 64, "gptj", "last", torch.bfloat16),
                                                       (7, 32, "neox", "first", torch.float32),
                                                       (40, 8, None, "last", torch.float16)):
        q = rows_of(tokens * heads, 128, dtype, generator).view(tokens, heads, 128)
        weights = torch.randn(tokens, heads, generator=generator).to(weight_dtype)
        options = {"index_format": index_format}
        if pairs is not None:
            options |= {"positions": torch.randint(0, 60, (tokens,), generator=generator), "pairs": pairs,
                        "table": table_of(64, generator, torch.bfloat16, False), "rotary_columns": columns}
        found = operators.quantize_index_queries(q.to(device), weights.to(device), **to(device, options))
        wanted = flashlatent.quantize_index_queries(q, weights, **options)
        for a, b in zip(found, wanted):
            assert (a is None and b is None) or torch.equal(a.cpu(), b)


def test_compiles(device):
    generator = torch.Generator().manual_seed(7)
    x, keys = rows_of(4, 512, torch.bfloat16, generator).to(device), rows_of(4, 128, torch.bfloat16, generator).to(device)
    rotate = to(device, {"positions": torch.arange(4), "table": table_of(64, generator, torch.float32, False)})
    slots = torch.arange(4, device=device)

    def step(x, keys, cache, index_cache):
        operators.append_latent(x, None, slots, cache, kv_format="fp8_584", norm=1e-6, **rotate)
        operators.append_index_keys(keys, slots, index_cache, page_size=PAGE_SIZE, **rotate)
        return operators.quantize_index_queries(keys[:, None], keys[:, :1].float(), index_format="mxfp4_68", **rotate)

    results = []
    target = next(key for key in RECORDS if key[0] == "fp8_584")
    for way in (step, torch.compile(step, backend="eager", fullgraph=True)):
        memory, cache, _ = empty_cache(target, 512, device)
        index_cache = torch.zeros(PAGES, PAGE_SIZE * 132, dtype=torch.uint8, device=device)
        results.append((*way(x, keys, cache, index_cache), memory, index_cache))
    for a, b in zip(*results):
        assert torch.equal(a, b)


def test_positions_outside_of_the_table(device):
    x = torch.ones(3, 512, dtype=torch.bfloat16, device=device)
    cache = torch.zeros(1, 4, 1, 512, dtype=torch.bfloat16, device=device)
    options = to(device, {"positions": torch.tensor([0, 60, 1]), "table": torch.ones(60, 64)})
    if device == "cpu":
        with pytest.raises(ValueError, match="positions has 60 for token 1"):
            operators.append_latent(x, None, torch.arange(3), cache, **options)
        return
    operators.append_latent(x, None, torch.arange(3, device=device), cache, **options)
    assert cache[0, 1, 0, 448:].isnan().all() and not cache[0, 1, 0, :448].isnan().any()
    assert not cache[0, 0].isnan().any() and not cache[0, 2].isnan().any()


def test_slots_past_the_end(device):
    x = torch.ones(2, 512, dtype=torch.bfloat16, device=device)
    cache = torch.zeros(1, 4, 1, 512, dtype=torch.bfloat16, device=device)
    slots = torch.tensor([4, 1], device=device)
    if device == "cpu":
        with pytest.raises(ValueError, match="slot_mapping"):
            operators.append_latent(x, None, slots, cache, norm=1e-6)
        return
    operators.append_latent(x, None, slots, cache, norm=1e-6)
    assert not cache[0, 0].any() and cache[0, 1].all()
