"""flashlatent.vllm's backend of keys and values apart, on CPU tensors beside a plain float32 layer: prompts, decode and
their mixture, both layouts, windows, soft caps, sinks and e4m3 caches."""

import os
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
TREE = os.environ.get("FLASHLATENT_VLLM")
if not TREE:
    pytest.skip("FLASHLATENT_VLLM is not set; scripts/check engines sets it", allow_module_level=True)
sys.path.insert(0, TREE)
sys.path.insert(0, os.path.dirname(__file__))

import flashlatent.vllm  # noqa: E402
import vllm_case as case  # noqa: E402
from flashlatent.vllm import _refusals  # noqa: E402
from test_vllm import backend_class, reasons  # noqa: E402

flashlatent.vllm.register()
HEADS, KV_HEADS, DIM, SIZE = 6, 2, 64, 16


def run(dtype=torch.bfloat16, heads_first=False, lengths=(40, 5, 131), queries=(1, 5, 20), padding=0, cache="auto",
        **options):
    """(out, expected): the backend's rows and those of float32."""
    generator = torch.Generator().manual_seed(4)
    with case.vllm_config(dtype, use_mla=False) as config:
        backend = backend_class()
        impl = backend.get_impl_cls()(HEADS, DIM, DIM**-0.5, KV_HEADS, options.get("alibi"), options.get("window"),
                                      cache, options.get("cap"), sinks=options.get("sinks"))
        impl.process_weights_after_loading(dtype)
        builder = backend.get_builder_cls()(SimpleNamespace(block_size=SIZE), ["layer"], config, case.DEVICE)
    pages = [-(-n // SIZE) for n in lengths]
    numbers = torch.randperm(sum(pages), generator=generator).int()
    table = torch.zeros(len(lengths) + padding, max(pages), dtype=torch.int32)
    kind = torch.uint8 if cache == "fp8" else dtype
    order = (sum(pages), KV_HEADS, SIZE, 2 * DIM) if heads_first else (sum(pages), SIZE, KV_HEADS, 2 * DIM)
    kv_cache = torch.zeros(order, dtype=kind)
    kv_cache = kv_cache if heads_first else kv_cache.transpose(1, 2)
    layer = SimpleNamespace(_k_scale=torch.tensor(0.02), _v_scale=torch.tensor(0.03))
    keys = [torch.randn(n, KV_HEADS, DIM, generator=generator).to(dtype) for n in lengths]
    values = [torch.randn(n, KV_HEADS, DIM, generator=generator).to(dtype) for n in lengths]
    at = 0
    for i, n in enumerate(lengths):
        table[i, :pages[i]] = numbers[at:at + pages[i]]
        at += pages[i]
        t = torch.arange(n)
        slots = table[i, t // SIZE].long() * SIZE + t % SIZE
        padded = [torch.cat([x, x[:3]]) for x in (keys[i], values[i])]
        impl.do_kv_cache_update(layer, *padded, kv_cache, slots)
    if cache == "fp8":
        for rows, scale in ((keys, 0.02), (values, 0.03)):
            rows[:] = [(x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale for x in rows]
    total = sum(queries)
    q = torch.randn(total + padding, HEADS * DIM, generator=generator).to(dtype)
    starts = torch.tensor([0, *queries] + [0] * padding).cumsum(0).int()
    metadata = builder.build(0, SimpleNamespace(
        causal=True, num_actual_tokens=total + padding, max_query_len=max(queries), max_seq_len=max(lengths),
        query_start_loc=starts, query_start_loc_cpu=starts,
        seq_lens=torch.tensor([*lengths] + [0] * padding, dtype=torch.int32), block_table_tensor=table,
        slot_mapping=None))
    assert metadata.typical_tokens >= max(lengths) > metadata.typical_tokens // 2
    out = torch.full_like(q, float("nan"))
    returned = impl.forward(layer, q, None, None, kv_cache, metadata, out)
    assert returned is out and not out.isnan().any()
    expected, row = [], 0
    for i, (n, s) in enumerate(zip(lengths, queries)):
        k, v = (x.float().repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys[i], values[i]))
        scores = torch.einsum("nhd,thd->hnt", q[row:row + s].view(s, HEADS, DIM).float(), k) * DIM**-0.5
        if "cap" in options:
            scores = options["cap"] * torch.tanh(scores / options["cap"])
        last = n - s + torch.arange(s)[:, None]
        if "alibi" in options:
            scores += torch.tensor(options["alibi"])[:, None, None] * (torch.arange(n) - last)[None]
        seen = torch.arange(n)[None] <= last
        if "window" in options:
            seen &= torch.arange(n)[None] > last - options["window"]
        scores = scores.masked_fill(~seen, float("-inf"))
        if "sinks" in options:
            scores = torch.cat([scores, options["sinks"].float()[:, None, None].expand(-1, s, 1)], -1)
            v = torch.cat([v, torch.zeros(1, HEADS, DIM)])
        expected.append(torch.einsum("hnt,thd->nhd", scores.softmax(-1), v).flatten(1))
        row += s
    return out[:total].float(), torch.cat(expected)


def close(result, bound):
    out, expected = result
    assert (out - expected).abs().max() < bound


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("queries, padding", [((1, 1, 1), 0), ((1, 1, 1), 2), ((1, 5, 20), 0), ((40, 5, 131), 1)])
def test_prompts_decode_and_mixtures(dtype, bound, heads_first, queries, padding):
    close(run(dtype, heads_first, queries=queries, padding=padding), bound)


@pytest.mark.parametrize("options", [
    dict(window=16), dict(cap=5.0), dict(alibi=[0.5, 0.25, 0.1, 0.05, 0.02, 0.0]),
    dict(sinks=torch.linspace(-1, 2, HEADS).bfloat16())])
def test_windows_soft_caps_and_sinks(options):
    close(run(**options), 2e-2)


def test_e4m3_cache_with_scales():
    close(run(cache="fp8"), 4e-2)


def test_configurations(monkeypatch):
    monkeypatch.setattr(_refusals, "cuda_reason", lambda: "")
    with case.vllm_config(use_mla=False):
        backend = backend_class()
        fine = dict(head_size=128, use_mla=False, has_sink=True, has_sliding_window=True)
        assert reasons(backend, **fine) == []
        assert reasons(backend, **fine, kv_cache_dtype="fp8") == []
        for fault, sentence in [(dict(head_size=72), "head_size is 72; a multiple of 16 up to 256"),
                                (dict(kv_cache_dtype="fp8_e5m2"), "kv_cache_dtype is fp8_e5m2; auto, bfloat16")]:
            assert any(sentence in reason for reason in reasons(backend, **{**fine, **fault}))
