"""What the vLLM plugin does where vLLM is not what it knows: one warning, and no error. No vLLM is needed."""

import logging
import os

import pytest

import flashlatent.vllm
from flashlatent.vllm import _contract

TREE = os.environ.get("FLASHLATENT_VLLM")


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(flashlatent.vllm, "_done", False)
    monkeypatch.setattr(flashlatent.vllm, "_name", None)


def test_an_unknown_vllm_is_left_alone_with_one_warning(fresh, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(flashlatent.vllm, "read", lambda: _contract.read(str(tmp_path), "9.9"))
    with caplog.at_level(logging.WARNING):
        flashlatent.vllm.register()
        flashlatent.vllm.register()
    assert flashlatent.vllm.backend_name() is None
    (record,) = caplog.records
    assert "the interface of vLLM 9.9 is not known" in record.message and "forward_mqa" in record.message


def test_nothing_is_raised_at_start_up(fresh, monkeypatch, caplog):
    def broken():
        raise RuntimeError("out of order")
    monkeypatch.setattr(flashlatent.vllm, "read", broken)
    flashlatent.vllm.register()
    assert "RuntimeError: out of order" in caplog.text


@pytest.mark.parametrize("change, fault", [
    (("def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer)", "def forward_mqa(self, q, cache, layer)"),
     "has no argument kv_c_and_k_pe_cache, attn_metadata"),
    (("def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer)",
      "def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer, out)"), "asks for out, too"),
    (("def is_mla(cls)", "def is_latent(cls)"), "is_mla in vllm/model_executor/layers/attention/mla_attention.py"),
])
def test_faults_name_function_file_and_argument(tmp_path, change, fault):
    files = {}
    for file, name, arguments in _contract._NEEDS:
        owner, _, function = name.rpartition(".")
        names = ", ".join(a for a in arguments.split() if a != "**")
        files.setdefault(file, {}).setdefault(owner, []).append(f"def {function}({names}): pass")
    for file, classes in files.items():
        text = ""
        for owner, functions in classes.items():
            text += f"class {owner}:\n" if owner else ""
            text += "".join(f"{'    ' if owner else ''}{function}\n" for function in functions)
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = _contract.read(str(tmp_path), "1")
    assert found.faults == [] and "_select_dsv4_attn_cls" in found.v4_faults[0]
    path = tmp_path / "model_executor/layers/attention/mla_attention.py"
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    (found,) = _contract.read(str(tmp_path), "1").faults
    assert fault in found


@pytest.mark.skipif(not TREE, reason="FLASHLATENT_VLLM is not set; scripts/check engines sets it")
def test_this_vllm_is_known():
    contract = _contract.read(os.path.join(TREE, "vllm"), "this")
    assert contract.faults == [] and contract.v4_faults == [] and contract.indexer_faults == []
    has_v41 = os.path.isdir(os.path.join(TREE, "vllm/models/deepseek_v41"))
    assert (contract.v41_faults == []) == has_v41
