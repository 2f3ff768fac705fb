"""The drop-in for flash_mla, on every device there is."""

import math
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashlatent
from flashlatent import flash_mla
from test_torch import DEVICES, TorchCase, capture

pytestmark = pytest.mark.parametrize("device", DEVICES)


def check(case, out, lse, **options):
    # Empty rows have +inf here.
    empty = lse == math.inf
    assert (out.transpose(1, 2)[empty] == 0).all()
    case.check(out, torch.where(empty, -math.inf, lse), **options)


@pytest.mark.parametrize("causal", [False, True])
def test_against_oracle(device, causal):
    case = TorchCase([0, 1, 100], device, dtype="bf16", tokens=2)
    q, k_cache, block_table, cache_seqlens = case.tensors
    metadata, num_splits = flash_mla.get_mla_metadata()
    for _ in range(2):
        out, lse = flash_mla.flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, 256, metadata, num_splits,
                                                    softmax_scale=case.scale, causal=causal)
        check(case, out, lse, causal=causal)
    assert (lse[0] == math.inf).all()


def test_old_call_and_default_scale(device):
    case = TorchCase([12, 70], device)
    q, k_cache, block_table, cache_seqlens = case.tensors
    metadata, num_splits = flash_mla.get_mla_metadata(cache_seqlens, 4, 1, num_heads_q=4, is_fp8_kvcache=False)
    check(case, *flash_mla.flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, 256, metadata, num_splits))
    assert case.scale == 320**-0.5


def test_stale_metadata(device):
    metadata, num_splits = flash_mla.get_mla_metadata()
    case = TorchCase([300, 70], device)
    for lengths in ([300, 70], [1, 0], [77, 50]):
        case.set_lengths(lengths)
        check(case, *flash_mla.flash_mla_with_kvcache(*case.tensors, 256, metadata, num_splits))
    other = TorchCase([9, 40, 7], device, heads=8)
    check(other, *flash_mla.flash_mla_with_kvcache(*other.tensors, 256, metadata, num_splits))
    case.set_lengths([300, 70])
    check(case, *flash_mla.flash_mla_with_kvcache(*case.tensors, 256, metadata, num_splits))


def test_compile(device):
    metadata, num_splits = flash_mla.get_mla_metadata()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(*tensors):
        out, lse = flash_mla.flash_mla_with_kvcache(*tensors, 256, metadata, num_splits, causal=True)
        return out * 1, lse

    for lengths in ([70, 1, 0], [5, 200]):
        case = TorchCase(lengths, device, tokens=2)
        check(case, *layer(*case.tensors), causal=True)


def test_cuda_graph(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    case = TorchCase([40, 200, 3], device)
    with torch.cuda.device(device):
        metadata, num_splits = flash_mla.get_mla_metadata()
        run = lambda: flash_mla.flash_mla_with_kvcache(*case.tensors, 256, metadata, num_splits)
        run()
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        results = []
        for graph in graphs:
            with capture(graph, device):
                results.append(run())
        for lengths in ([40, 200, 3], [1, 7, 0]):
            case.set_lengths(lengths)
            for graph, (out, lse) in zip(reversed(graphs), reversed(results)):
                graph.replay()
                check(case, out.clone(), lse.clone())


@pytest.mark.parametrize("match, options", [
    ("extra_indices_in_kvcache is given, but extra_k_cache is missing",
     {"extra_indices_in_kvcache": torch.zeros(1, 1, 4, dtype=torch.int32)}),
    ("is_fp8_kvcache is True and k_cache is torch.float16", {"is_fp8_kvcache": True}),
    ("is_fp8_kvcache is False and k_cache is torch.uint8",
     {"is_fp8_kvcache": False, "q": torch.zeros(1, 1, 4, 576, dtype=torch.bfloat16),
      "k_cache": torch.zeros(1, 64, 1, 656, dtype=torch.uint8)}),
    ("tile_scheduler_metadata is a NoneType", {"tile_scheduler_metadata": None}),
    ("head_dim_v is 512", {"head_dim_v": 512}),
])
def test_refusals(device, match, options):
    case = TorchCase([3], device)
    names = ["q", "k_cache", "block_table", "cache_seqlens"]
    options = {name: value.to(device) if torch.is_tensor(value) else value for name, value in options.items()}
    arguments = {**dict(zip(names, case.tensors)), "head_dim_v": 256,
                 "tile_scheduler_metadata": flash_mla.get_mla_metadata()[0], **options}
    with pytest.raises(flashlatent.FlashLatentError, match=match):
        flash_mla.flash_mla_with_kvcache(**arguments)


def spaced(tensor, device):
    """The same values among others, so that no dimension but the innermost is contiguous."""
    wide = torch.full([extent + 1 for extent in tensor.shape[:-1]] + [tensor.shape[-1] + 128], 7, dtype=tensor.dtype,
                      device=device)
    view = wide[tuple(slice(extent) for extent in tensor.shape)]
    view.copy_(tensor)
    return view


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("page_size, cache_dtype", [(64, "uint8"), (61, "int8"), (2, "float8_e4m3fn")])
def test_sparse_fp8(device, page_size, cache_dtype, sink):
    torch.manual_seed(0)
    pages = 320 // page_size
    q = spaced(torch.randn(3, 2, 64, 576).bfloat16(), device)
    plain = torch.randn(pages, page_size, 1, 576).bfloat16()
    quantised = flashlatent.torch.convert_cache(plain, torch.uint8)
    rows = flashlatent.torch.convert_cache(quantised, torch.bfloat16).reshape(-1, 576).double()
    indices = torch.randint(0, pages * page_size, (3, 2, 40), dtype=torch.int32)
    indices[:, :, ::3] = -1
    indices[1, 1] = -1
    topk_length = torch.tensor([40, 25, 0], dtype=torch.int32)
    attn_sink = torch.randn(64)
    attn_sink[:2] = torch.tensor([math.inf, -math.inf])
    k_cache = torch.zeros(pages, page_size + 1, 1, 656, dtype=torch.uint8, device=device)[:, :page_size]
    k_cache.copy_(quantised)  # its pages lie apart
    k_cache = k_cache.view(getattr(torch, cache_dtype))
    metadata, num_splits = flash_mla.get_mla_metadata()
    # What the cache is may be said or not.
    options = {"attn_sink": attn_sink.to(device)} if sink else {"is_fp8_kvcache": True}
    out, lse = flash_mla.flash_mla_with_kvcache(q, k_cache, None, None, 512, metadata, num_splits,
                                                indices=spaced(indices, device), topk_length=topk_length.to(device),
                                                **options)
    assert (lse[1, :, 1] == math.inf).all() and (out[1, 1] == 0).all()
    assert (lse[2] == math.inf).all() and (out[2] == 0).all()
    for i, t in [(0, 0), (0, 1), (1, 0)]:
        named = indices[i, t, :topk_length[i]]
        seen = rows[named[named >= 0].long()]
        scores = q[i, t].double().cpu() @ seen.T * 576**-0.5
        np.testing.assert_allclose(lse[i, :, t].cpu(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
        expected = scores.softmax(-1) @ seen[:, :512]
        if sink:
            expected *= (scores.logsumexp(-1) - attn_sink).sigmoid()[:, None]
        np.testing.assert_allclose(out[i, t].float().cpu(), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("compiled", [False, True])
def test_batch_invariant(device, compiled):
    """A request's bits are those that it has alone, whatever the metadata was made for."""
    case = TorchCase([9000, 3, 700, 5000], device, tokens=2)
    q, k_cache, block_table, cache_seqlens = case.tensors
    metadata, num_splits = flash_mla.get_mla_metadata()

    def layer(q, k_cache, block_table, cache_seqlens):
        return flash_mla.flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, 256, metadata, num_splits,
                                                causal=True, enable_batch_invariant=True)

    if compiled:
        layer = torch.compile(layer, fullgraph=True, backend="eager")
    out, lse = layer(q, k_cache, block_table, cache_seqlens)
    check(case, out, lse, causal=True)
    for i in range(4):
        alone = layer(q[i:i + 1], k_cache, block_table[i:i + 1], cache_seqlens[i:i + 1])
        assert torch.equal(alone[0][0], out[i]) and torch.equal(alone[1][0], lse[i])


def test_programs_that_import_flash_mla(device, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys, flash_mla, helper\nfrom flash_mla import get_mla_metadata\n"
                       "assert flash_mla.__name__ == 'flashlatent.flash_mla' and get_mla_metadata()[1] is None\n"
                       "print(sys.argv[1:], helper.ANSWER)\n")
    (tmp_path / "helper.py").write_text("ANSWER = 42\n")
    run = lambda *arguments: subprocess.run([sys.executable, "-m", "flashlatent.flash_mla", *arguments],
                                            capture_output=True, text=True)
    done = run(str(program), "-x")
    assert done.returncode == 0 and done.stdout == "['-x'] 42\n", done.stderr
    assert "PROGRAM is 'nothing.py', not a file" in run("nothing.py").stderr


def test_sparse_forward_of_other_packages(device):
    with pytest.raises(flashlatent.ArgumentTypeError, match=r"q is a ndarray; a torch.Tensor is expected \(flashlatent.spar"):
        flash_mla.flash_mla_sparse_fwd(np.zeros((1, 2, 64), np.float16), np.zeros((3, 1, 64), np.float16),
                                       np.zeros((1, 1, 2), np.int32), 1.0)
