"""Contexts that ranks share, without processes: each rank's call in turn, merged by combine()."""

import numpy as np
import pytest

import flashlatent
from oracle import Case, bf16_values, decode

WORLD = 3


def shards(case, run, options):
    """(out, lse) of each rank's tokens of the case's contexts, which it has in pages of its own."""
    page_size, at = case.kv_cache.shape[1], case.kv_cache
    for rank in range(WORLD):
        cache = np.full_like(at, 0x7FC0 if at.dtype == np.uint16 else np.nan)
        table = np.full_like(case.block_table, 1 << 30)
        free = iter(range(len(at)))
        for i, length in enumerate(case.cache_seqlens):
            own = [t for t in range(length) if t // run % WORLD == rank]
            for slot, t in enumerate(own):
                if slot % page_size == 0:
                    table[i, slot // page_size] = next(free)
                cache[table[i, slot // page_size], slot % page_size] = \
                    at[case.block_table[i, t // page_size], t % page_size]
        yield flashlatent.decode(case.q, cache, table, case.cache_seqlens, shard=(rank, WORLD, run), **options)


@pytest.mark.parametrize("run", [1, 4])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("tokens", [1, 4])
def test_ranks_merge_to_the_whole(run, dtype, tokens):
    case = Case([0, 1, 3, 40, 100], tokens=tokens, dtype=dtype)
    options = {**case.options(), "causal": True}
    outs, lses = zip(*shards(case, run, options))
    merged = np.empty_like(outs[0])
    bits = {"dtype": "bf16"} if dtype == "bf16" else {}
    out, lse = flashlatent.combine(np.stack(outs), np.stack(lses), out=merged, **bits)
    expected_out, expected_lse = decode(*map(case.numbers, case.arguments()), case.v_dim, case.scale, causal=True)
    tolerance = 2**-6 if dtype == "bf16" else 2**-9  # parts are rounded, too
    np.testing.assert_allclose(bf16_values(out) if dtype == "bf16" else out, expected_out, rtol=tolerance,
                               atol=tolerance)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)


def test_a_plan_knows_the_shard():
    case = Case([70, 5])
    problem = flashlatent.Problem.of_arrays(case.q, case.kv_cache, case.block_table, shard=(1, 2, 16),
                                            **case.options())
    assert problem.shard == (1, 2, 16)
    assert flashlatent.Problem.of_arrays(case.q, case.kv_cache, case.block_table, **case.options()).shard == (0, 1, 1)
    plan = flashlatent.Plan(problem)
    plan.schedule(case.cache_seqlens)
    out, lse = plan.decode(*case.arguments())
    assert np.isfinite(lse[0]).all() and (lse[1] == -np.inf).all()  # of 5 tokens all are rank 0's


@pytest.mark.parametrize("shard, words", [((2, 2, 1), "shard rank is 2"), ((0, 2, 0), "shard run is 0")])
def test_wrong_shards_are_refused(shard, words):
    case = Case([70])
    with pytest.raises(flashlatent.InvalidArgumentError, match=words):
        flashlatent.decode(*case.arguments(), shard=shard, **case.options())


def test_a_sink_is_the_merges():
    case = Case([70])
    with pytest.raises(flashlatent.InvalidArgumentError, match="a sink is applied once, by combine"):
        flashlatent.decode(*case.arguments(), shard=(0, 2, 1), attn_sink=np.zeros(4, np.float32), **case.options())


@pytest.fixture
def group(tmp_path):
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_group_of_one(group):
    import torch
    from flashlatent.distributed import ContextParallel
    case = Case([70, 0, 5], tokens=2)
    context = ContextParallel()
    arrays = [torch.from_numpy(array) for array in case.arguments()]
    options = {"softmax_scale": case.scale, "v_dim": case.v_dim, "causal": True}
    out, lse = context.decode(*arrays, overlap=True, **options).wait()
    case.check(out.numpy(), lse.numpy(), causal=True)
    with pytest.raises(flashlatent.InvalidArgumentError, match="shard is given; ContextParallel sets it itself"):
        context.decode(*arrays, shard=(0, 2, 1), **options)
    with pytest.raises(flashlatent.InvalidArgumentError, match="q_rope is given, and ranks exchange queries as one tensor"):
        context.decode(*arrays, q_rope=arrays[0], **options)
    with pytest.raises(flashlatent.InvalidArgumentError, match="exchange is 'ring'; auto, all_to_all"):
        ContextParallel(exchange="ring")


def test_tokens_go_to_their_rank_and_slot():
    torch = pytest.importorskip("torch")
    from flashlatent.distributed import Interleaving
    table = torch.tensor([[7, 3], [2, 9]], dtype=torch.int32)
    ranks = [Interleaving(rank, 2, 4) for rank in range(2)]
    positions, requests = torch.tensor([0, 5, 11, 4]), torch.tensor([0, 0, 1, 1])
    slots = [rank.slot_mapping(positions, requests, table, 4).tolist() for rank in ranks]
    assert slots == [[28, -1, 39, -1], [-1, 29, -1, 8]]
    lengths = torch.tensor([0, 1, 4, 5, 13, 16])
    assert [rank.local_lengths(lengths).tolist() for rank in ranks] == [[0, 1, 4, 4, 8, 8], [0, 0, 0, 1, 5, 8]]
    assert [ranks[1].local_lengths(n) for n in (4, 5, 13)] == [0, 1, 5]
    assert [ranks[1].position_of(slot) for slot in range(6)] == [4, 5, 6, 7, 12, 13]
