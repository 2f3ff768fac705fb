"""Two caches in one softmax through torch: the operators, and the drop-in for flash_mla."""
import math
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import flashlatent
import flashlatent.torch
from flashlatent import flash_mla
from flashlatent.flash_mla import flash_mla_interface
from test_flash_mla import spaced


def case(device, tokens=2):
    torch.manual_seed(0)
    caches = []
    for pages, page_size in ((3, 64), (40, 2)):
        plain = torch.randn(pages, page_size, 1, 512, device=device).bfloat16()
        caches.append(flashlatent.torch.convert_cache(plain, torch.uint8))
    assert caches[1].shape == (40, 2, 1, 584) and caches[1].stride() == (1728, 584, 584, 1)
    q = torch.randn(2, tokens, 64, 512, device=device).bfloat16()
    indices = torch.randint(-1, 192, (2, tokens, 128), dtype=torch.int32, device=device)
    extra = torch.randint(-1, 80, (2, tokens, 30), dtype=torch.int32, device=device)
    extra[1, -1] = -1
    lengths = torch.tensor([128, 0], dtype=torch.int32, device=device)
    extra_lengths = torch.tensor([5, 30], dtype=torch.int32, device=device)
    return q, *caches, indices, lengths, extra, extra_lengths


def expected(q, cache, extra_cache, indices, lengths, extra, extra_lengths):
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), math.inf, dtype=torch.float64)
    rows = [flashlatent.torch.convert_cache(c, torch.bfloat16).reshape(-1, 512).double().cpu()
            for c in (cache, extra_cache)]
    for i in range(q.shape[0]):
        for t in range(q.shape[1]):
            named = indices[i, t, :lengths[i]].cpu().long(), extra[i, t, :extra_lengths[i]].cpu().long()
            seen = torch.cat([r[n[n >= 0]] for r, n in zip(rows, named)])
            if len(seen) > 0:
                scores = q[i, t].double().cpu() @ seen.T * 512**-0.5
                out[i, t], lse[i, :, t] = scores.softmax(-1) @ seen, scores.logsumexp(-1)
    return out, lse


def check(got, tensors):
    out, lse = expected(*tensors)
    torch.testing.assert_close(got[0].double().cpu(), out, rtol=2**-6, atol=2**-7)
    torch.testing.assert_close(got[1].double().cpu(), lse, rtol=1e-5, atol=1e-5)


def drop_in(tensors, metadata=None, **options):
    metadata = flash_mla.get_mla_metadata() if metadata is None else metadata
    q, cache, extra_cache, indices, lengths, extra, extra_lengths = tensors
    return flash_mla.flash_mla_with_kvcache(
        q, cache, None, None, 512, *metadata, is_fp8_kvcache=True, indices=indices,
        topk_length=lengths, extra_k_cache=extra_cache, extra_indices_in_kvcache=extra, extra_topk_length=extra_lengths,
        **options)


def devices():
    """On a GPU where a kernel takes it."""
    problem = flashlatent.Problem(batch=2, heads=64, softmax_scale=1.0, topk=128, qk_dim=512, kv_format="fp8_584",
                                  extra_page_size=2, extra_topk=30)
    found = ["cpu"]
    if torch.cuda.is_available():
        try:
            flashlatent.Plan(problem, device="cuda")
            found.append("cuda")
        except flashlatent.FlashLatentError:
            pass
    return found


@pytest.mark.parametrize("device", devices())
def test_drop_in(device):
    tensors = case(device)
    check(drop_in(tensors), tensors)
    out = torch.empty(2, 2, 64, 512, dtype=torch.bfloat16, device=device)
    got = drop_in(tensors, out=out)
    assert got[0] is out
    check(got, tensors)
    q, cache, extra_cache, indices, lengths, extra, extra_lengths = tensors
    caches = (c.view(torch.float8_e4m3fn) for c in (cache, extra_cache))
    check(drop_in((spaced(q, device), *caches, spaced(indices, device), lengths, spaced(extra, device), extra_lengths)),
          tensors)
    check(drop_in(tensors, enable_batch_invariant=True), tensors)


@pytest.mark.parametrize("device", devices())
def test_compiled(device):
    tensors = case(device)
    metadata = flash_mla.get_mla_metadata()
    compiled = torch.compile(lambda *t: drop_in(t, metadata), fullgraph=True, backend="eager")
    check(compiled(*tensors), tensors)
    if torch.__version__.startswith("2.4."):
        return  # it cannot trace out=
    out = torch.empty(2, 2, 64, 512, dtype=torch.bfloat16, device=device)
    into = torch.compile(lambda out, *t: drop_in(t, metadata, out=out), fullgraph=True, backend="eager")
    check(into(out, *tensors), tensors)


@pytest.mark.parametrize("device", devices())
def test_operators(device):
    tensors = case(device)
    q, cache, extra_cache, indices, lengths, extra, extra_lengths = tensors
    options = {"indices": indices, "topk_length": lengths, "extra_kv_cache": extra_cache, "extra_indices": extra,
               "extra_topk_length": extra_lengths}
    plan = flashlatent.torch.plan(q, cache, **options)
    out, lse = flashlatent.torch.decode(q, cache, softmax_scale=512**-0.5, plan=plan, **options)
    check((out, torch.where(lse == -math.inf, math.inf, lse)), tensors)
    for operator, extra_options in (("plan", {}), ("decode", {"softmax_scale": 1.0})):
        torch.library.opcheck(getattr(torch.ops.flashlatent, operator).default, (q, cache), {**options, **extra_options},
                              test_utils=("test_schema", "test_faketensor"))


def test_names_of_the_drop_in(tmp_path):
    assert isinstance(flash_mla.get_mla_metadata()[0], flash_mla_interface.FlashMLASchedMeta)
    for name in ("flash_attn_varlen_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_varlen_kvpacked_func"):
        with pytest.raises(flashlatent.UnsupportedError, match=name):
            getattr(flash_mla_interface, name)(1, max_seqlen_q=2)
    with pytest.raises(flashlatent.InvalidArgumentError, match="extra_k_cache"):
        drop_in((*case("cpu")[:2], None, *case("cpu")[3:]))
    program = tmp_path / "program.py"
    program.write_text("import flash_mla\n"
                       "from flash_mla.flash_mla_interface import FlashMLASchedMeta, flash_mla_sparse_fwd\n"
                       "assert type(flash_mla.get_mla_metadata()[0]) is FlashMLASchedMeta\n"
                       "assert flash_mla.flash_mla_sparse_fwd is flash_mla_sparse_fwd\nprint('right')\n")
    done = subprocess.run([sys.executable, "-m", "flashlatent.flash_mla", str(program)], capture_output=True, text=True)
    assert done.stdout == "right\n", done.stderr


def test_spawned_processes_get_the_drop_in(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import multiprocessing\n"
                       "def child():\n"
                       "    import flash_mla\n"
                       "    from flash_mla.flash_mla_interface import FlashMLASchedMeta\n"
                       "    assert type(flash_mla.get_mla_metadata()[0]) is FlashMLASchedMeta\n"
                       "if __name__ == '__main__':\n"
                       "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
                       "    process.start()\n"
                       "    process.join()\n"
                       "    print(process.exitcode)\n")
    done = subprocess.run([sys.executable, "-m", "flashlatent.flash_mla", str(program)], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr
