"""Page pool, combine and queries."""

import numpy as np
import pytest

import flashlatent
from oracle import Case


def test_page_pool_shares_prefixes():
    pool = flashlatent.PagePool(pages=8, page_size=4)
    first, cached = pool.create([10, 11], length=9)
    assert cached == 0 and pool.length(first) == 9 and len(pool.pages(first)) == 3
    assert pool.commit(first, [10, 11]) == 2
    second, cached = pool.create([10, 11], length=10)
    assert cached == 2 and pool.pages(second)[:2] == pool.pages(first)[:2]
    assert pool.append(second, 1) is None
    block_table, cache_seqlens = pool.write_page_table([first, second], max_pages=4, rows=3)
    assert block_table.dtype == np.int32 and block_table[0].tolist() == pool.pages(first) + [-1]
    assert cache_seqlens.tolist() == [9, 11, 0] and (block_table[2] == -1).all()
    assert pool.stats["used"] == 4 and pool.stats["hits"] == 2
    pool.release(first)
    with pytest.raises(flashlatent.InvalidArgumentError):
        pool.length(first)
    pool.check_invariants()


def test_page_pool_copies_on_write():
    pool = flashlatent.PagePool(4, 4)
    parent, _ = pool.create([], length=6)
    child = pool.fork(parent)
    assert child != parent and child != 3
    source, target, tokens = pool.append(child, 1)
    assert source == pool.pages(parent)[1] and target == pool.pages(child)[1] and tokens == 2
    with pytest.raises(flashlatent.ExhaustedError, match="append"):
        pool.append(child, 100)


def test_combine_of_halves():
    case = Case([64, 40])
    halves = []
    for first in (0, 1):  # the first two pages of each request, then the others
        table = case.block_table[:, 2 * first:]
        lengths = np.clip(case.cache_seqlens - 32 * first, 0, 32).astype(np.int32)
        halves.append(flashlatent.decode(case.q, case.kv_cache, table, lengths, **case.options()))
    partial_out = np.stack([half[0] for half in halves]).astype(np.float32)
    partial_lse = np.stack([half[1] for half in halves])
    out, lse = flashlatent.combine(partial_out, partial_lse)
    assert out.dtype == np.float32
    case.check(out, lse)
    half_out = np.empty(out.shape, np.float16)
    assert flashlatent.combine(partial_out, partial_lse, out=half_out)[0] is half_out
    case.check(half_out, lse)
    with pytest.raises(flashlatent.InvalidArgumentError, match="partial_out is fp32 \\(2, 1, 4, 64\\)"):
        flashlatent.combine(partial_out[0], partial_lse)


def test_info():
    info = flashlatent.info()
    assert info["version"] == flashlatent.__version__
    cpu = info["backends"]["cpu"]
    assert cpu["available"] and "cpu_dense" in cpu["kernels"] and cpu["devices"][0]["units"] >= 1


def test_default_backend(monkeypatch):
    monkeypatch.setenv("FLASHLATENT_BACKEND", "cpu")
    assert flashlatent.default_backend() == "cpu"
    monkeypatch.setenv("FLASHLATENT_BACKEND", "abacus")
    with pytest.raises(flashlatent.InvalidArgumentError, match="abacus"):
        flashlatent.default_backend()


def test_problem_and_explain():
    options = {"batch": 2, "heads": 16, "max_pages": 4, "softmax_scale": 0.5, "tokens": 2}
    problem = flashlatent.Problem(**options, causal=True)
    assert (problem.batch, problem.heads, problem.tokens, problem.dtype) == (2, 16, 2, "bf16")
    assert problem == flashlatent.Problem(**options, causal=True)
    assert problem != flashlatent.Problem(**options)
    assert "h_q=16" in str(problem)
    assert "cpu_dense: picked" in flashlatent.explain(problem)


def test_explain_asks_no_device():
    """With workers every build answers for GPU kernels, extra caches included."""
    problem = flashlatent.Problem(batch=64, heads=64, softmax_scale=1, qk_dim=512, v_dim=512, kv_format="fp8_584",
                                  max_pages=0, topk=128, extra_page_size=64, extra_topk=512)
    lines = flashlatent.explain(problem, device="cuda", workers=132).splitlines()
    assert sum(": picked" in line for line in lines) == 1
    assert "mla_16_transposed: declines: h_q / h_kv is 64; at most 16 query rows a KV head are accepted" in lines
    assert "cpu_dense: picked" in flashlatent.explain(problem, workers=3)
    with pytest.raises(flashlatent.InvalidArgumentError, match="workers is 0; 1 to 65536 are accepted"):
        flashlatent.explain(problem, workers=0)
    with pytest.raises(flashlatent.InvalidArgumentError, match="threads is 2 and workers is given"):
        flashlatent.explain(problem, threads=2, workers=2)


def test_describe_plan():
    problem = flashlatent.Problem(batch=3, heads=16, max_pages=64, softmax_scale=1)
    plan = flashlatent.describe_plan(problem, [4096, 64, 0], workers=4)
    done = sum(end - begin for part in plan["parts"] for segment in part["segments"]
               for begin, end in [segment["blocks"]])
    assert done == plan["rounds"] * (4096 + 64) // plan["block_tokens"]
    assert plan["partition"] == "line"
    with pytest.raises(flashlatent.InvalidArgumentError, match="lengths has 1 entries"):
        flashlatent.describe_plan(problem, [1], workers=4)
    # What GPU kernels take, and how they cut a call, every build knows.
    plan = flashlatent.describe_plan(problem, [4096, 64, 0], device="cuda", workers=132)
    assert plan["kernel"] == "mla_16_team8" and plan["block_tokens"] == 64


def test_costs_of_a_gpu_may_be_loaded(tmp_path):
    text = flashlatent.costs_text()
    assert text.startswith("gpu H200\n") and "\nmla_16 rows16 per_block=" in text
    path = tmp_path / "costs"
    path.write_text(text.replace("gpu H200", "gpu NVIDIA Hopper of a test") + "# measured\n")
    flashlatent.load_costs(str(path))
    assert flashlatent.costs_text("Hopper of a test 80GB").startswith("gpu Hopper of a test\n")
    path.write_text("gpu H20\nmla_16 rows16 per_block=fast\n")
    with pytest.raises(flashlatent.InvalidArgumentError, match="line 2 of the costs has 'per_block=fast'"):
        flashlatent.load_costs(str(path))
    with pytest.raises(flashlatent.InvalidArgumentError, match="cannot be read"):
        flashlatent.load_costs(str(tmp_path / "none"))
    with pytest.raises(flashlatent.InvalidArgumentError, match="cannot be read"):
        flashlatent.load_costs(f"{path}\0x")
    path.write_bytes(b"\xa7\0\x1b[31m" * 50)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"line 1 of the costs begins with '\?\?\?\[31m.*\.\.\.'"):
        flashlatent.load_costs(str(path))
