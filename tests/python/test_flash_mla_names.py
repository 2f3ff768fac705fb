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
    with pytest.raises(flashlatent.InvalidArgumentError, match="names has None"):
        flash_mla.install(None)


def edges_case(tokens=3, heads=8):
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(tokens, heads, 512, generator=generator).bfloat16()
    angles = torch.rand(40, 32, generator=generator) * 6.28
    table = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.randint(0, 40, (tokens,), dtype=torch.int32, generator=generator)
    return q, {"enable_q_norm": True, "rms_norm_eps": 1e-6, "token_positions": positions, "is_rope_neox_style": False,
               "rope_dim": 64, "cos_sin_cache": table, "n_wv_group": 2, "use_tma_aligned_col_major_sf": True,
               "round_sf": True}, generator


def by_tiles(rows, heads, width):
    """Rows of `heads` heads, of tiles of `width`, as rows of tiles of heads."""
    return rows.unflatten(-1, (heads, -1, width)).transpose(-3, -2).flatten(-3)


def dequantised(codes, scales, columns):
    tokens, groups, _ = codes.shape
    if columns == 128:
        factors = scales.double()
    else:
        factors = torch.exp2(scales.contiguous().view(torch.uint8).double() - 127)
    rows = codes.float().double().view(tokens, groups, -1, columns) * factors.reshape(tokens, groups, -1, 1)
    if columns == 32:  # tiles of each head in turn, as the original has them
        rows = rows.view(tokens, groups, 16, -1, 32).transpose(2, 3)
    return rows.flatten(1)


@pytest.mark.parametrize("columns", [32, 128])
def test_fused_edges(columns):
    q, edges, generator = edges_case()
    edges |= {"num_per_channels": columns, "use_packed_ue8m0": columns == 32}
    kv = torch.randn(20, 1, 512, generator=generator).bfloat16()
    indices = torch.randint(0, 20, (3, 8), dtype=torch.int32, generator=generator)
    fused = flash_mla.fused_norm_rope_attn_rope_cast
    codes, scales, max_logits, lse = fused.prefill(**edges, q=q, kv=kv, indices=indices[:, None], sm_scale=0.05)
    assert codes.dtype == torch.float8_e4m3fn and codes.shape == (3, 2, 4 * 512) and scales.shape == (3, 2, 16)
    assert codes.is_contiguous() if columns == 32 else codes.transpose(0, 1).is_contiguous()
    assert scales.view(3, 32).stride() == (1, 4)

    rotation = {"positions": edges["token_positions"], "table": edges["cos_sin_cache"]}
    prepared = flashlatent.torch.prepare_queries(q, norm=1e-6, **rotation)
    out, expected_logits, expected_lse = flash_mla.flash_mla_sparse_fwd(prepared, kv, indices[:, None], 0.05)
    turned = flashlatent.finish_outputs(out, **rotation).double().flatten(1)
    assert torch.equal(max_logits, expected_logits) and torch.equal(lse, expected_lse)
    error = (dequantised(codes, scales, columns) - turned).abs().max() / turned.abs().max()
    assert error < 2**-4

    cache = flashlatent.convert_cache(kv.view(1, 20, 1, 512), format="fp8_584")
    codes, scales, lse = fused.decode(**edges, q=q, k_cache=cache, indices_in_kvcache=indices, sm_scale=0.05,
                                      extra_k_cache=cache, extra_indices_in_kvcache=indices)
    again, same_lse = flashlatent.torch.decode(prepared[:, None], cache, indices=torch.cat([indices, indices], 1)[:, None],
                                               softmax_scale=0.05)
    assert torch.allclose(lse, same_lse[..., 0], atol=1e-5)
    turned = flashlatent.finish_outputs(again[:, 0].contiguous(), **rotation).double().flatten(1)
    assert (dequantised(codes, scales, columns) - turned).abs().max() / turned.abs().max() < 2**-4
    weight = (q, q)
    assert fused.permute_q_b_proj(weight, 8, 512) is weight and fused.permute_wv_proj(weight, 4, 512) is weight


def test_weights_behind_the_outputs():
    generator = torch.Generator().manual_seed(4)
    weight = torch.randint(0, 120, (2, 6, 4 * 512), dtype=torch.uint8, generator=generator)
    exponents = torch.randint(100, 140, (2, 6, 64), dtype=torch.uint8, generator=generator)
    scales = torch.empty_strided((2, 6, 16), (16 * 8, 1, 8), dtype=torch.int32).copy_(exponents.view(torch.int32))
    permute = flash_mla.fused_norm_rope_attn_rope_cast.permute_wv_proj
    codes, factors = permute((weight.view(torch.float8_e4m3fn), scales), 4, 512)
    assert codes.dtype == torch.float8_e4m3fn and torch.equal(codes.view(torch.uint8), by_tiles(weight, 4, 32))
    assert factors.stride() == scales.stride()
    assert torch.equal(factors.contiguous().view(torch.uint8), by_tiles(exponents, 4, 1))
    for wrong in ((weight.int(), scales), (weight, scales[..., :8])):
        with pytest.raises(ValueError, match="weight_and_sf has"):
            permute(wrong, 4, 512)
    with pytest.raises(ValueError, match="weight_and_sf has .*d_o 256"):
        permute((weight, scales), 4, 256)


@pytest.mark.parametrize("change, message", [
    ({"num_per_channels": 64}, "num_per_channels is 64"),
    ({"use_packed_ue8m0": False}, "use_packed_ue8m0 is False and num_per_channels is 32"),
    ({"round_sf": False}, "round_sf is False; True is accepted"),
    ({"rope_dim": 32}, "rope_dim is 32"),
    ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0"),
    ({"n_wv_group": 3}, "n_wv_group is 3 and q has 8 heads"),
])
def test_fused_edges_refuse(change, message):
    q, edges, generator = edges_case()
    edges |= {"num_per_channels": 32, "use_packed_ue8m0": True} | change
    kv = torch.randn(20, 1, 512, generator=generator).bfloat16()
    with pytest.raises(ValueError, match=message):
        flash_mla.fused_norm_rope_attn_rope_cast.prefill(**edges, q=q, kv=kv, sm_scale=0.05,
                                                         indices=torch.zeros(3, 1, 8, dtype=torch.int32))
