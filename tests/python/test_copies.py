"""Problems are values; what holds memory or handles refuses to be copied or pickled, and says what to do."""

import copy
import inspect
import pickle

import pytest

import flashlatent

LATENT = {"batch": 3, "heads": 16, "softmax_scale": 0.1, "max_pages": 7}
PROBLEMS = [
    LATENT,
    {**LATENT, "tokens": 2, "causal": True, "batch_invariant": True, "window": 40, "dtype": "fp16", "page_size": 16,
     "empty_lse": float("inf"), "calls_per_plan": 3, "typical_tokens": 77, "v_dim": 256, "qk_dim": 320},
    {**LATENT, "tokens": 4, "ragged": True, "prefix_sharing": "auto", "q_edge": True, "out_edge": True},
    {**LATENT, "kv_format": "fp8_656", "shard": (1, 2, 4)},
    {**LATENT, "kv_format": "e4m3", "q_dtype": "e4m3", "products": "fp8"},
    {**LATENT, "max_pages": 0, "topk": 64, "attn_sink": True, "extra_page_size": 32, "extra_topk": 5},
    {**LATENT, "extra_page_size": 32, "extra_max_pages": 5},
    {**LATENT, "kv_format": "mxfp8_528", "scales": "page", "qk_dim": 512, "extra_page_size": 32, "extra_topk": 5,
     "extra_kv_format": "nvfp4_288", "max_pages": 0, "topk": 64},
    {**LATENT, "layout": "separate", "kv_heads": 4, "qk_dim": 128, "v_dim": 128, "soft_cap": 30.0, "alibi": True},
]


@pytest.mark.parametrize("fields", PROBLEMS)
def test_a_problem_is_a_value(fields):
    problem = flashlatent.Problem(**fields)
    copies = [copy.copy(problem), copy.deepcopy(problem)]
    copies += [pickle.loads(pickle.dumps(problem, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in copies:
        assert other == problem and hash(other) == hash(problem) and repr(other) == repr(problem)
    assert {name: getattr(copies[-1], name) for name in fields} == {name: getattr(problem, name) for name in fields}


def test_every_field_is_tried_and_can_be_read():
    fields = set(inspect.signature(flashlatent.Problem).parameters)
    assert fields == {name for problem in PROBLEMS for name in problem}
    problem = flashlatent.Problem(**LATENT)
    assert all(hasattr(problem, name) for name in fields)


def refusing():
    problem = flashlatent.Problem(**LATENT)
    pool = flashlatent.PagePool(4, 16)
    return [(flashlatent.Plan(problem), r"Plan\(plan.problem, device=...\)"), (flashlatent.Step(), r"a new Step\(\)"),
            (pool, r"fork\(\).*write_page_table\(\)"), (pool.create([], 5)[0], r"fork\(\)")]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps, lambda x: pickle.dumps(x, 0),
                                 lambda x: copy.deepcopy({"x": [x]})])
def test_others_say_what_to_do(way):
    for thing, match in refusing():
        with pytest.raises(TypeError, match=f"flashlatent.{type(thing).__name__} can be neither copied nor pickled.*{match}"):
            way(thing)
