"""Every error is an exception whose message names the argument, its value and what would do."""

import numpy as np
import pytest

import flashlatent
from oracle import Case


def refused(match, change, error=flashlatent.InvalidArgumentError):
    case = Case([20, 3])
    arguments = dict(zip(["q", "kv_cache", "block_table", "cache_seqlens"], case.arguments()))
    arguments.update(case.options())
    arguments.update(change(case))
    with pytest.raises(error, match=match) as raised:
        flashlatent.decode(**arguments)
    assert isinstance(raised.value, flashlatent.FlashLatentError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("match, change", [
    ("q is a list; an array is expected", lambda case: {"q": [1.0]}),
    ("q has elements of type float64", lambda case: {"q": case.q.astype(np.float64)}),
    ("q has elements of type uint16.*dtype='bf16'", lambda case: {"q": case.q.view(np.uint16)}),
    ("q has elements of type >f2", lambda case: {"q": case.q.astype(">f2")}),
    ("q is fp16 .*; expected \\(batch, s_q, h_q, d\\)", lambda case: {"q": case.q[0]}),
    ("kv_cache", lambda case: {"kv_cache": case.kv_cache.astype(np.float32)}),
    ("block_table is int64", lambda case: {"block_table": case.block_table.astype(np.int64)}),
    ("cache_seqlens is int32 \\(1\\)", lambda case: {"cache_seqlens": case.cache_seqlens[:1]}),
    ("cache_seqlens is missing", lambda case: {"cache_seqlens": None}),
    ("v_dim is 97", lambda case: {"v_dim": 97}),
    ("softmax_scale is inf", lambda case: {"softmax_scale": float("inf")}),
    ("dtype is 'int4'", lambda case: {"dtype": "int4"}),
    ("threads is -1", lambda case: {"threads": -1}),
    ("innermost stride must be 1", lambda case: {"q": case.q.repeat(2, axis=-1)[..., ::2]}),
    ("out is read-only", lambda case: {"out": np.broadcast_to(np.float16(0), (2, 1, 4, 64))}),
    ("lse is fp32 \\(3\\)", lambda case: {"lse": np.empty(3, np.float32)}),
    ("workspace is uint8 .*; a contiguous array", lambda case: {"workspace": np.empty((9, 9), np.uint8)[:, ::2]}),
])
def test_invalid_arguments(match, change):
    refused(match, change)
    assert issubclass(flashlatent.InvalidArgumentError, ValueError)


def test_small_workspace():
    refused("workspace has .* bytes; this problem needs",
            lambda case: {"workspace": np.empty(512, np.uint8)}, flashlatent.ExhaustedError)


def test_unknown_kernel():
    refused("kernel is 'fast'; cpu has cpu_dense", lambda case: {"kernel": "fast"}, flashlatent.UnsupportedError)
    assert issubclass(flashlatent.UnsupportedError, NotImplementedError)


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "cuda1"])
def test_device_names(name):
    problem = flashlatent.Problem(batch=1, heads=16, max_pages=1, softmax_scale=1)
    with pytest.raises(flashlatent.InvalidArgumentError, match=f"device is '{name}'; cpu, cuda and cuda:N"):
        flashlatent.Plan(problem, device=name)


def test_cuda_where_it_is_not():
    info = flashlatent.info()["backends"]["cuda"]
    if info["available"]:
        pytest.skip("there is a GPU")
    problem = flashlatent.Problem(batch=1, heads=16, max_pages=1, softmax_scale=1)
    with pytest.raises(flashlatent.UnavailableError) as raised:
        flashlatent.Plan(problem, device="cuda")
    assert str(raised.value) == info["reason"]


def plan_of(case):
    problem = flashlatent.Problem.of_arrays(*case.arguments()[:3], softmax_scale=case.scale, v_dim=case.v_dim)
    return flashlatent.Plan(problem)


def test_decode_before_schedule():
    case = Case([3])
    with pytest.raises(flashlatent.InvalidArgumentError, match="call schedule\\(\\) before decode\\(\\)"):
        plan_of(case).decode(*case.arguments())


def test_another_problems_arrays():
    case = Case([3])
    plan = plan_of(case)
    plan.schedule(case.cache_seqlens)
    with pytest.raises(flashlatent.InvalidArgumentError, match="q is .*wrong shape"):
        plan.decode(*Case([3], heads=2).arguments())
