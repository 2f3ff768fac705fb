"""flashlatent.vllm's DeepSeek V4 layer beside plain float32, on the GPU where there is one: decode and prompts, window
layers and both kinds of compressed ones; and how it is chosen."""

import logging
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

import flashlatent  # noqa: E402
import flashlatent.vllm  # noqa: E402
from flashlatent.vllm import _after_import, _refusals, _sparse, _v4_choice  # noqa: E402
from vllm_case import DEVICE  # noqa: E402

flashlatent.vllm.register()
HEADS, DIM, WINDOW, SCALE = 6, 512, 128, 512**-0.5
LENGTHS, NEW = [300, 40, 150], [1, 2, 20]  # the last request is a prompt, the others decode
DECODES = 3


def cache_of(lengths, page_size, generator):
    """(vLLM's cache, block table, each request's rows as a reader sees them)."""
    pages = [-(-n // page_size) for n in lengths]
    page_bytes = -(-page_size * 584 // 576) * 576
    raw = torch.full((sum(pages) + 2, page_bytes), 127, dtype=torch.uint8)
    cache = raw.as_strided((len(raw), page_size, 584), (page_bytes, 584, 1))
    table = torch.zeros(len(lengths), max(pages + [1]), dtype=torch.int32)
    numbers, rows = torch.randperm(len(raw), generator=generator).int(), []
    for i, n in enumerate(lengths):
        table[i, :pages[i]] = numbers[sum(pages[:i]):sum(pages[:i + 1])]
        tokens = torch.arange(n)
        slots = table[i, tokens // page_size].long() * page_size + tokens % page_size
        new = torch.randn(n, DIM, generator=generator).bfloat16()
        flashlatent.append_latent(new[:, :448], new[:, 448:], slots, cache.unsqueeze(2))
        seen = torch.empty(n, 1, DIM, dtype=torch.bfloat16)
        if n:
            flashlatent.gather_cache(cache.unsqueeze(2), table[i:i + 1], torch.tensor([0, n], dtype=torch.int32),
                                     out=seen)
        rows.append(seen[:, 0].float())
    cache = raw.to(DEVICE).as_strided(cache.shape, cache.stride())
    return cache, table, rows


def in_pages(tokens, request, table, page_size):
    """Slots of a request's tokens, int32 (most), -1 behind them."""
    slots = table[request, tokens // page_size] * page_size + tokens % page_size
    return torch.cat([slots, torch.full((WINDOW - len(slots),), -1)]).int()


def case(ratio):
    """(layer, metadata by layer name, q, what float32 says)."""
    from flashlatent.vllm.deepseek_v4 import FlashLatentV4Attention
    from vllm.models.deepseek_v4.sparse_mla import DeepseekV4FlashMLAMetadata
    from vllm.v1.attention.backends.mla.sparse_swa import DeepseekSparseSWAMetadata

    generator = torch.Generator().manual_seed(5)
    window_cache, window_table, window_rows = cache_of(LENGTHS, 64, generator)
    compressed = [n // ratio if ratio > 1 else 0 for n in LENGTHS]
    cache, table, rows = cache_of(compressed, 256 // ratio, generator)
    layer = FlashLatentV4Attention.__new__(FlashLatentV4Attention)
    torch.nn.Module.__init__(layer)
    layer.n_local_heads, layer.padded_heads = HEADS, layer.get_padded_num_q_heads(HEADS)
    layer.prefix, layer.compress_ratio, layer.scale, layer.kv_cache = "layer", ratio, SCALE, cache
    layer.swa_cache_layer = SimpleNamespace(prefix="window", kv_cache=window_cache)
    layer.attn_sink = torch.full((layer.padded_heads,), -float("inf"))
    layer.attn_sink[:HEADS] = torch.linspace(-1, 2, HEADS)
    sink = layer.attn_sink[:HEADS, None]

    requests = torch.repeat_interleave(torch.arange(3), torch.tensor(NEW))
    positions = torch.cat([torch.arange(n - s, n) for n, s in zip(LENGTHS, NEW)])
    q = torch.zeros(len(requests), layer.padded_heads, DIM, dtype=torch.bfloat16)
    q[:, :HEADS] = torch.randn(len(requests), HEADS, DIM, generator=generator)
    windows, counts, chosen, expected = [], [], [], []
    for row, (i, at) in enumerate(zip(requests.tolist(), positions.tolist())):
        tokens = torch.arange(max(0, at + 1 - WINDOW), at + 1)
        windows.append(in_pages(tokens, i, window_table, 64))
        counts.append(len(tokens))
        there = (at + 1) // ratio if ratio > 1 else 0
        some = torch.arange(there) if ratio == 128 else torch.randperm(there, generator=generator)[:there // 2]
        chosen.append(torch.cat([some, torch.full((WINDOW - len(some),), -1)]).int())
        keys = torch.cat([window_rows[i][tokens], rows[i][some]])
        scores = torch.cat([q[row, :HEADS].float() @ keys.T * SCALE, sink], 1)
        expected.append(scores.softmax(1)[:, :-1] @ keys)
    slots = torch.stack([in_pages(c[c >= 0], i, table, 256 // ratio) for i, c in zip(requests, chosen)]).to(DEVICE)
    windows, counts, chosen = (x.to(DEVICE) for x in (torch.stack(windows), torch.tensor(counts).int(),
                                                      torch.stack(chosen)))
    requests, table, window_table = requests.int().to(DEVICE), table.to(DEVICE), window_table.to(DEVICE)
    layer.topk_indices_buffer, layer.attn_sink = chosen, layer.attn_sink.to(DEVICE)
    swa = DeepseekSparseSWAMetadata(
        block_table=window_table, slot_mapping=None, block_size=64,
        is_valid_token=torch.ones(len(requests), dtype=torch.bool, device=DEVICE), token_to_req_indices=requests,
        decode_swa_indices=windows[:DECODES, None],
        decode_swa_lens=counts[:DECODES], prefill_swa_indices=windows[DECODES:, None],
        prefill_swa_lens=counts[DECODES:], num_decodes=2, num_prefills=1, num_decode_tokens=DECODES,
        num_prefill_tokens=NEW[-1])
    metadata = {"window": swa}
    if ratio > 1:
        metadata["layer"] = DeepseekV4FlashMLAMetadata(
            num_reqs=3, max_query_len=20, max_seq_len=300, num_actual_tokens=len(requests), query_start_loc=None,
            slot_mapping=None, block_table=table, req_id_per_token=requests, block_size=256, topk_tokens=WINDOW,
            c128a_global_decode_topk_indices=slots[:DECODES, None],
            c128a_decode_topk_lens=(slots[:DECODES] >= 0).sum(1).int(), c128a_prefill_topk_indices=chosen[DECODES:])
    return layer, metadata, q.to(DEVICE), torch.stack(expected)


def run(monkeypatch, layer, metadata, q):
    from flashlatent.vllm import deepseek_v4
    from vllm.models.deepseek_v4.nvidia import flashmla
    for module in (deepseek_v4, flashmla):
        monkeypatch.setattr(module, "get_forward_context", lambda: SimpleNamespace(attn_metadata=metadata))
    out = torch.full_like(q, float("nan"))
    layer.forward_mqa(q, None, torch.zeros(len(q), dtype=torch.int64), out)
    return out[:, :HEADS].float().cpu()


@pytest.mark.parametrize("ratio", [1, 4, 128])
@pytest.mark.parametrize("sparse_prefill", [True, False])
def test_decode_and_prompts_from_both_caches(monkeypatch, ratio, sparse_prefill):
    layer, metadata, q, expected = case(ratio)
    monkeypatch.setattr(_sparse, "_refused", set())
    if not sparse_prefill:
        def refuse(*_, **__):
            raise flashlatent.UnsupportedError("not here")
        monkeypatch.setattr(flashlatent, "sparse_prefill", refuse)
    out = run(monkeypatch, layer, metadata, q)
    assert (out - expected).abs().max() < 2e-2
    assert DEVICE.type != "cpu" or bool(_sparse._refused) != sparse_prefill


def test_measuring_memory_takes_no_workspace(monkeypatch):
    layer, _, q, _ = case(1)
    assert not run(monkeypatch, layer, None, q).any()


def test_heads_are_padded_to_what_vllms_kernel_writes():
    from flashlatent.vllm.deepseek_v4 import FlashLatentV4Attention
    padded = FlashLatentV4Attention.get_padded_num_q_heads
    assert [padded(n) for n in (1, 8, 9, 16, 32, 64, 100)] == [8, 8, 16, 16, 32, 64, 128]
    with pytest.raises(ValueError, match="num_heads is 160 on this rank; at most 128 is expected"):
        padded(160)


def test_the_layer_is_chosen_by_the_backends_name(monkeypatch, caplog):
    from vllm.platforms import current_platform
    theirs = object()
    model = SimpleNamespace(_select_dsv4_attn_cls=lambda config: theirs)
    name = flashlatent.vllm.backend_name()
    _v4_choice._change(model, name, [])

    def choose(name):
        backend = name and SimpleNamespace(name=name)
        return model._select_dsv4_attn_cls(SimpleNamespace(attention_config=SimpleNamespace(backend=backend)))

    assert choose(None) is theirs and choose("FLASHMLA_SPARSE") is theirs
    monkeypatch.setattr(type(current_platform), "get_device_capability",
                        classmethod(lambda cls, device_id=0: SimpleNamespace(major=9, minor=0)))
    monkeypatch.setattr(_refusals, "cuda_reason", lambda: "")
    assert choose(name).__name__ == "FlashLatentV4Attention"
    monkeypatch.setattr(_refusals, "cuda_reason", lambda: "no driver")
    with pytest.raises(ValueError, match="flashlatent cannot use the GPU: no driver"):
        choose(name)
    model = SimpleNamespace(_select_dsv4_attn_cls=lambda config: theirs)
    _v4_choice._change(model, name, ["_forward_decode is not there"])
    with caplog.at_level(logging.WARNING):
        assert choose(name) is theirs
    assert "DeepSeek V4 takes vLLM's own attention layer: _forward_decode is not there" in caplog.text


def test_a_module_is_changed_when_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "fl_changed_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    _after_import.after_import("fl_changed_module", lambda module: setattr(module, "value", module.value + 1))
    import fl_changed_module
    assert fl_changed_module.value == 2 and sys.meta_path == before
    assert "value = 1" in fl_changed_module.__loader__.get_source("fl_changed_module")
    _after_import.after_import("fl_changed_module", lambda module: setattr(module, "value", 7))
    assert fl_changed_module.value == 7


def test_vllms_module_is_changed():
    from vllm.models.deepseek_v4.nvidia import model
    assert model._select_dsv4_attn_cls.__module__ == "flashlatent.vllm._v4_choice"
