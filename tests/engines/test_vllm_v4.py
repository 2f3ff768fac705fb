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
from flashlatent import _after_import, _sparse  # noqa: E402
from flashlatent.vllm import _refusals, _v4_choice  # noqa: E402
from v4_case import DECODES, WINDOW, case, run  # noqa: E402
from vllm_case import DEVICE  # noqa: E402

flashlatent.vllm.register()


def v4_case(ratio):
    """(layer, metadata by layer name, q, what float32 says)."""
    from flashlatent.vllm.deepseek_v4 import FlashLatentV4Attention
    from vllm.models.deepseek_v4.sparse_mla import DeepseekV4FlashMLAMetadata

    layer, swa, (table, requests, chosen, slots), q, expected = case(FlashLatentV4Attention, ratio,
                                                                     compressed=ratio > 1, everything=ratio == 128)
    metadata = {"window": swa}
    if ratio > 1:
        metadata["layer"] = DeepseekV4FlashMLAMetadata(
            num_reqs=3, max_query_len=20, max_seq_len=300, num_actual_tokens=len(requests), query_start_loc=None,
            slot_mapping=None, block_table=table, req_id_per_token=requests, block_size=256, topk_tokens=WINDOW,
            c128a_global_decode_topk_indices=slots[:DECODES, None],
            c128a_decode_topk_lens=(slots[:DECODES] >= 0).sum(1).int(), c128a_prefill_topk_indices=chosen[DECODES:])
    return layer, metadata, q, expected


def attend(monkeypatch, layer, metadata, q):
    from vllm.models.deepseek_v4.nvidia import flashmla
    return run(monkeypatch, flashmla, layer, metadata, q)


@pytest.mark.parametrize("ratio", [1, 4, 128])
@pytest.mark.parametrize("sparse_prefill", [True, False])
def test_decode_and_prompts_from_both_caches(monkeypatch, ratio, sparse_prefill):
    layer, metadata, q, expected = v4_case(ratio)
    monkeypatch.setattr(_sparse, "_refused", set())
    if not sparse_prefill:
        def refuse(*_, **__):
            raise flashlatent.UnsupportedError("not here")
        monkeypatch.setattr(flashlatent, "sparse_prefill", refuse)
    out = attend(monkeypatch, layer, metadata, q)
    assert (out - expected).abs().max() < 2e-2
    assert DEVICE.type != "cpu" or bool(_sparse._refused) != sparse_prefill


def test_measuring_memory_takes_no_workspace(monkeypatch):
    layer, _, q, _ = v4_case(1)
    assert not attend(monkeypatch, layer, None, q).any()


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
    _v4_choice._change(_v4_choice.V4, model, name, [])

    def choose(name):
        backend = name and SimpleNamespace(name=name)
        return model._select_dsv4_attn_cls(SimpleNamespace(
            attention_config=SimpleNamespace(backend=backend), additional_config={}))

    assert choose(None) is theirs and choose("FLASHMLA_SPARSE") is theirs
    monkeypatch.setattr(type(current_platform), "get_device_capability",
                        classmethod(lambda cls, device_id=0: SimpleNamespace(major=9, minor=0)))
    monkeypatch.setattr(_refusals, "cuda_reason", lambda: "")
    assert choose(name).__name__ == "FlashLatentV4Attention"
    monkeypatch.setattr(_refusals, "cuda_reason", lambda: "no driver")
    with pytest.raises(ValueError, match="flashlatent cannot use the GPU: no driver"):
        choose(name)
    model = SimpleNamespace(_select_dsv4_attn_cls=lambda config: theirs)
    _v4_choice._change(_v4_choice.V4, model, name, ["_forward_decode is not there"])
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
