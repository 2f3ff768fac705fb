"""The names and fields of flash_mla that engines use, and where install() puts them."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import flashlatent
from flashlatent import flash_mla
from test_torch import TorchCase

HOST = torch.device("cpu")


def run(program):
    """Runs a Python program in a process of its own; returns what it prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_metadata_as_callers_set_it():
    case = TorchCase([12, 70], HOST)
    metadata = flash_mla.FlashMLASchedMeta()
    assert metadata.have_initialized is False and metadata.num_splits is None
    tiles, splits = flash_mla.get_mla_decoding_metadata(case.tensors[3], 4, 1, h_q=4)
    metadata.tile_scheduler_metadata, metadata.num_splits, metadata.have_initialized = tiles, splits, True
    assert tiles.dtype == splits.dtype == torch.int32 and splits.tolist() == [0, 1, 2]
    out, lse = flash_mla.flash_mla_with_kvcache(*case.tensors, 256, metadata, use_legacy=True)
    case.check(out, lse)


def test_base_of_prefill_statistics():
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(3, 4, 576, generator=generator).bfloat16()
    kv = torch.randn(20, 1, 576, generator=generator).bfloat16()
    indices = torch.randint(0, 20, (3, 1, 8), dtype=torch.int32, generator=generator)
    indices[2] = -1
    out, logits, lse = flash_mla.flash_mla_sparse_fwd(q, kv, indices, 0.1, use_legacy=True)
    same, logits2, lse2 = flash_mla.flash_mla_sparse_fwd(q, kv, indices, 0.1, return_log2_lse=True)
    assert torch.equal(out, same)
    assert torch.allclose(lse2[:2] * 0.6931471805599453, lse[:2])
    assert torch.allclose(logits2[:2] * 0.6931471805599453, logits[:2])
    assert (lse2[2] == float("inf")).all() and (logits2[2] == -float("inf")).all()
    assert flash_mla.flash_mla_sparse_fwd(q, kv, indices, 0.1, return_log2_lse=False)[1:] == (None, None)


def test_kv_format_must_agree():
    case = TorchCase([12, 70], HOST)
    metadata = flash_mla.FlashMLASchedMeta()
    with pytest.raises(flashlatent.InvalidArgumentError, match="k_cache is .* 'V32' its last dimension must be 656"):
        flash_mla.flash_mla_with_kvcache(*case.tensors, 256, metadata, kv_format="V32")
    with pytest.raises(NotImplementedError, match="kv_format is 'V5'"):
        flash_mla.flash_mla_with_kvcache(*case.tensors, 256, metadata, kv_format="V5")


def test_install_and_undo():
    assert run("""
import sys
from flashlatent import flash_mla as ours
done = ours.install()
import flash_mla
from flash_mla.flash_mla_interface import flash_mla_with_kvcache
assert flash_mla_with_kvcache is ours.flash_mla_with_kvcache is flash_mla.flash_mla_with_kvcache
assert flash_mla.__name__ == "flash_mla"
done.undo()
assert not [name for name in sys.modules if name.split(".")[0] == "flash_mla"]
done.undo()
print("right")""") == "right"


def test_install_puts_back_what_was_there():
    assert run("""
import sys, types
parent, third, before = types.ModuleType("vllm"), types.ModuleType("vllm.third_party"), types.ModuleType("before")
parent.__path__ = third.__path__ = []
sys.modules.update({"vllm": parent, "vllm.third_party": third, "vllm.third_party.flashmla": before})
third.flashmla = before
from flashlatent import flash_mla as ours
with ours.install("vllm.third_party.flashmla"):
    from vllm.third_party import flashmla
    import vllm.third_party.flashmla.flash_mla_interface as interface
    assert flashmla.get_mla_metadata is interface.get_mla_metadata is ours.get_mla_metadata
assert third.flashmla is before is sys.modules["vllm.third_party.flashmla"]
assert "vllm.third_party.flashmla.flash_mla_interface" not in sys.modules
print("right")""") == "right"


def test_install_twice():
    assert run("""
import sys
from flashlatent import flash_mla as ours
first, second = ours.install("flash_mla"), ours.install("flash_mla")
second.undo()
import flash_mla
assert flash_mla.install is ours.install
first.undo()
assert "flash_mla" not in sys.modules
print("right")""") == "right"


def test_install_names():
    with pytest.raises(ValueError, match="names has 'flashinfer'"):
        flash_mla.install("flashinfer")
