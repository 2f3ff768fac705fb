"""Dense decode from NumPy against the float64 oracle."""

import numpy as np
import pytest

import flashlatent
from flashlatent import _typical
from oracle import Case

LENGTHS = [0, 1, 15, 16, 17, 200]


def problem_of(case):
    dtype = None if case.dtype == "fp16" else case.dtype
    return flashlatent.Problem.of_arrays(*case.arguments()[:3], softmax_scale=case.scale, v_dim=case.v_dim,
                                         dtype=dtype)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("page_size", [1, 16, 61])
def test_lengths(dtype, page_size):
    case = Case(LENGTHS, page_size=page_size, dtype=dtype)
    out, lse = flashlatent.decode(*case.arguments(), **case.options())
    assert out.dtype == case.q.dtype and out.shape == (6, 1, 4, 64)
    assert lse.dtype == np.float32 and lse.shape == (6, 4, 1)
    case.check(out, lse)


@pytest.mark.parametrize("causal", [False, True])
def test_query_tokens(causal):
    case = Case([2, 40, 3], tokens=3, heads=6, kv_heads=2)
    out, lse = flashlatent.decode(*case.arguments(), causal=causal, **case.options())
    case.check(out, lse, causal=causal)


def test_attn_sink():
    case = Case([0, 5, 70])
    sink = np.array([-1.0, 0.0, 2.5, 1.0], np.float32)
    case.check(*flashlatent.decode(*case.arguments(), attn_sink=sink, **case.options()), sink=sink)


def test_ragged():
    case = Case([30, 7, 12], tokens=2)
    whole, whole_lse = flashlatent.decode(*case.arguments(), causal=True, **case.options())
    # The second request has only its last query token.
    q = np.concatenate([case.q[0], case.q[1, 1:], case.q[2]])
    begins = np.array([0, 2, 3, 5], np.int32)
    out, lse = flashlatent.decode(q, *case.arguments()[1:], cu_seqlens_q=begins, causal=True, **case.options())
    np.testing.assert_allclose(out, np.concatenate([whole[0], whole[1, 1:], whole[2]]), atol=2**-10)
    np.testing.assert_allclose(lse[1, :, 0], whole_lse[1, :, 1], rtol=1e-6)


def test_dtypes_of_bf16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = Case(LENGTHS, dtype="bf16")
    bits, _ = flashlatent.decode(*case.arguments(), **case.options())
    q, kv_cache = (array.view(ml_dtypes.bfloat16) for array in (case.q, case.kv_cache))
    out, _ = flashlatent.decode(q, kv_cache, case.block_table, case.cache_seqlens, softmax_scale=case.scale,
                                v_dim=case.v_dim)
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(out.view(np.uint16), bits)


def test_outputs_of_the_caller():
    case = Case([33, 5])
    wide = np.full((2, 1, 8, 64), np.nan, np.float16)
    lse = np.zeros((1, 4, 2), np.float32).transpose(2, 1, 0)
    out, same_lse = flashlatent.decode(*case.arguments(), out=wide[:, :, ::2], lse=lse, **case.options())
    assert np.shares_memory(out, wide) and same_lse is lse
    case.check(wide[:, :, ::2], lse)
    assert np.isnan(wide[:, :, 1::2]).all()


def test_strided_inputs():
    case = Case([33, 5])
    wide = np.full((*case.kv_cache.shape[:3], 128), np.nan, np.float16)
    wide[..., 16:112] = case.kv_cache
    every_other = np.repeat(case.q, 2, axis=0)[::2]
    case.check(*flashlatent.decode(every_other, wide[..., 16:112], case.block_table, case.cache_seqlens,
                                   **case.options()))


def test_read_only_input():
    case = Case([33])
    case.q.flags.writeable = False
    case.check(*flashlatent.decode(*case.arguments(), **case.options()))


def test_plan_serves_layers_and_steps():
    case = Case([100, 3])
    plan = flashlatent.Plan(problem_of(case), threads=2)
    plan.schedule(case.cache_seqlens)
    workspace = np.empty(plan.workspace_bytes, np.uint8)
    for seed in range(2):
        layer = Case([100, 3], seed=seed)
        layer.check(*plan.decode(*layer.arguments(), workspace=workspace))
        layer.check(*plan.decode(*layer.arguments()))
    # A plan stays right when lengths change.
    case.cache_seqlens[:] = [50, 1]
    case.check(*plan.decode(*case.arguments()))


def test_plan_of_the_caller():
    case = Case([100, 3])
    plan = flashlatent.Plan(problem_of(case), threads=2)
    storage = np.empty(plan.plan_bytes + 300, np.uint8)
    for offset in (0, 1, 256):  # a plan may be moved
        plan.schedule(case.cache_seqlens, plan=storage[offset:])
        case.check(*plan.decode(*case.arguments(), plan=storage[offset:].copy()))
    with pytest.raises(flashlatent.InvalidArgumentError, match="plan"):
        plan.decode(*case.arguments(), plan=np.zeros(plan.plan_bytes, np.uint8))
    with pytest.raises(flashlatent.ExhaustedError, match="plan has 10 bytes"):
        plan.decode(*case.arguments(), plan=storage[:10])


def test_batch_invariant():
    case = Case([3000, 7])
    both, _ = flashlatent.decode(*case.arguments(), batch_invariant=True, **case.options())
    alone, _ = flashlatent.decode(case.q[:1], case.kv_cache, case.block_table[:1], case.cache_seqlens[:1],
                                  batch_invariant=True, **case.options())
    np.testing.assert_array_equal(both[:1], alone)


def test_reference_kernel():
    case = Case([40])
    plan = flashlatent.Plan.like(problem_of(case), case.q, kernel="reference")
    assert plan.kernel == "reference" and plan.device == "cpu"
    plan.schedule(case.cache_seqlens)
    case.check(*plan.decode(*case.arguments()))


def test_step_plans_for_each_problem():
    step = flashlatent.Step(threads=2)
    for _ in range(2):
        for case in (Case([100, 3]), Case([5], heads=2, tokens=2)):
            case.check(*step.decode(*case.arguments(), **case.options()))


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_step_follows_lengths(stateless, batch_invariant):
    step = flashlatent.Step(threads=2, stateless=stateless)
    case = Case([5000, 64])
    for lengths in ([3, 64], [5000, 0], [33, 50]):
        case.cache_seqlens[:] = lengths
        case.check(*step.decode(*case.arguments(), batch_invariant=batch_invariant, **case.options()))


def test_another_lse_for_empty_rows():
    case = Case([0, 20, 1], tokens=2)
    lse = np.zeros((2, 3, 4), np.float32).transpose(1, 2, 0)
    out, _ = flashlatent.Step().decode(*case.arguments(), causal=True, lse=lse, empty_lse=np.inf, **case.options())
    assert (lse[0] == np.inf).all() and (lse[2, :, 0] == np.inf).all()
    case.check(out, np.where(lse == np.inf, -np.inf, lse), causal=True)
    with pytest.raises(flashlatent.InvalidArgumentError, match="empty_lse is 0; -inf and [+]inf are accepted"):
        flashlatent.decode(*case.arguments(), empty_lse=0, **case.options())


@pytest.mark.parametrize("tokens", [None, 2])
def test_ragged_batch_without_any_token(tokens):
    q = np.zeros((0, 4, 64), np.float16)
    cache = np.ones((8, 16, 1, 64), np.float16)
    table, lengths, begins = np.zeros((2, 3), np.int32), np.array([5, 9], np.int32), np.zeros(3, np.int32)
    out, lse = flashlatent.decode(q, cache, table, lengths, cu_seqlens_q=begins, tokens=tokens, softmax_scale=1.0,
                                  v_dim=32)
    assert out.shape == (0, 4, 32)
    assert lse.shape == (2, 4, tokens or 1) and (np.asarray(lse) == -np.inf).all()


def test_typical_tokens():
    fields = dict(batch=1, heads=64, softmax_scale=1.0, max_pages=2048)
    none, short = flashlatent.Problem(**fields), flashlatent.Problem(**fields, typical_tokens=1024)
    assert none.typical_tokens == 0 and short.typical_tokens == 1024 and none != short
    assert "typical_tokens=1024" in str(short)
    tabled = flashlatent.Problem(**{**fields, "max_pages": 16})
    # Chosen as under a page table of so many tokens, and any lengths have a plan.
    kernels = [flashlatent.describe_plan(problem, [1024], device="cuda", workers=132)["kernel"]
               for problem in (none, short, tabled)]
    assert kernels[0] != kernels[1] == kernels[2]
    blocks = sum(s["blocks"][1] - s["blocks"][0]
                 for part in flashlatent.describe_plan(short, [131072], device="cuda", workers=132)["parts"]
                 for s in part["segments"])
    assert blocks == 2048
    for make in (lambda n: flashlatent.Problem(**fields, typical_tokens=n),
                 lambda n: flashlatent.decode(*Case([5]).arguments(), typical_tokens=n, **Case([5]).options())):
        with pytest.raises(flashlatent.InvalidArgumentError, match="typical_tokens is -1"):
            make(-1)
        with pytest.raises(flashlatent.ArgumentTypeError, match="typical_tokens is 1.5; an integer"):
            make(1.5)


# Lengths below and above what was expected, and expectations beyond the page table.
def test_settings_of_typical_tokens():
    assert _typical.of_setting("x", None) == _typical.IN_GRAPHS
    assert [_typical.of_setting("x", value) for value in (0, 5, np.int64(7), 2**31 - 1)] == [0, 5, 7, 2**31 - 1]
    for value in (-1, True, False, 1.5, "5", 2**31, [5], np.float32(5)):
        with pytest.raises(ValueError, match="x is .*; 0 .* or a positive integer"):
            _typical.of_setting("x", value)


@pytest.mark.parametrize("typical_tokens", [1, 64, 10**9])
def test_typical_tokens_change_no_result(typical_tokens):
    case = Case([0, 1, 700, 64])
    expected = flashlatent.decode(*case.arguments(), **case.options())
    found = flashlatent.decode(*case.arguments(), typical_tokens=typical_tokens, **case.options())
    case.check(*found)
    for a, b in zip(expected, found):
        np.testing.assert_array_equal(a, b)


def test_calls_per_plan():
    lengths = [1 + i * 37 % 7000 for i in range(128)]
    fields = dict(batch=128, heads=64, softmax_scale=1.0, max_pages=128)
    many, one = flashlatent.Problem(**fields), flashlatent.Problem(**fields, calls_per_plan=1)
    assert many.calls_per_plan == 0 and one.calls_per_plan == 1 and many != one
    packed, cut = (flashlatent.describe_plan(problem, lengths, device="cuda", workers=132) for problem in (many, one))
    assert packed["kernel"] == cut["kernel"] and packed["slots"] < cut["slots"]
    requests = [s["request"] for part in cut["parts"] for s in part["segments"]]
    assert requests == sorted(requests)
    with pytest.raises(flashlatent.InvalidArgumentError, match="calls_per_plan is -1"):
        flashlatent.Problem(**fields, calls_per_plan=-1)
    with pytest.raises(flashlatent.InvalidArgumentError, match="calls_per_plan is -1"):
        flashlatent.Step(calls_per_plan=-1)
    assert flashlatent.Step(calls_per_plan=2).calls_per_plan == 2
