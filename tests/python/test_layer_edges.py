"""The edges of a layer as options of decode and sparse prefill: the bits of the three functions one after another."""

import numpy as np
import pytest

import flashlatent

HEADS, DIM = 16, 512


def case(batch=3, tokens=2, seed=0):
    random = np.random.default_rng(seed)
    angles = random.uniform(0, 6.28, (50, 32))
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    return {"q": random.standard_normal((batch, tokens, HEADS, DIM)).astype(np.float16),
            "kv_cache": random.standard_normal((9, 64, 1, DIM)).astype(np.float16),
            "block_table": random.permutation(9).astype(np.int32).reshape(3, 3)[:batch],
            "cache_seqlens": random.integers(1, 190, batch, dtype=np.int32),
            "positions": random.integers(0, 50, (batch, tokens)), "table": table}


def call(given, decode=flashlatent.decode, **options):
    names = ("q", "kv_cache", "block_table", "cache_seqlens")
    return decode(*(given[name] for name in names), softmax_scale=0.05, **options)


@pytest.mark.parametrize("scale_columns", [128, 32])
@pytest.mark.parametrize("groups", [1, 4])
def test_decode_has_the_bits_of_three_calls(scale_columns, groups):
    given = case()
    rotation = {"positions": given["positions"], "table": given["table"]}
    prepared = flashlatent.prepare_queries(given["q"], norm=1e-6, **rotation)
    out, lse = call(given | {"q": prepared})
    codes, scales = flashlatent.finish_outputs(out, scale_columns=scale_columns, groups=groups, **rotation)
    rotated = flashlatent.finish_outputs(out, **rotation)
    edge = flashlatent.Rotation(**rotation)
    for decode in (flashlatent.decode, flashlatent.Step().decode):
        fp8 = flashlatent.empty_fp8_output(out, tokens=6, heads=HEADS, groups=groups, scale_columns=scale_columns)
        options = {"q_norm": 1e-6, "q_rotate": edge, "out_rotate": tuple(edge)}
        nothing, same_lse = call(given, decode, out_fp8=fp8, **options)
        assert nothing is None and np.array_equal(same_lse, lse)
        assert np.array_equal(fp8[0], codes) and np.array_equal(fp8[1], scales)
        got, same_lse = call(given, decode, **options)
        assert np.array_equal(got, rotated) and np.array_equal(same_lse, lse)
        both = np.empty_like(out)
        got, _ = call(given, decode, out=both, out_fp8=fp8, **options)
        assert got is both and np.array_equal(both, rotated) and np.array_equal(fp8[0], codes)


def test_by_plan():
    given = case()
    edge = given["positions"], given["table"], "neox", "interleaved"
    problem = flashlatent.Problem.of_arrays(given["q"], given["kv_cache"], given["block_table"], softmax_scale=0.05,
                                            q_edge=True, out_edge=True)
    assert problem.q_edge and problem.out_edge and "q_edge out_edge" in str(problem)
    plan = flashlatent.Plan(problem)
    plain = flashlatent.Plan(flashlatent.Problem.of_arrays(given["q"], given["kv_cache"], given["block_table"],
                                                           softmax_scale=0.05))
    assert plan.workspace_bytes >= plain.workspace_bytes + 2 * given["q"].nbytes
    plan.schedule(given["cache_seqlens"])
    arrays = [given[name] for name in ("q", "kv_cache", "block_table", "cache_seqlens")]
    out, _ = plan.decode(*arrays, q_rotate=edge, out_rotate=edge)
    expected, _ = call(given, q_rotate=edge, out_rotate=edge)
    assert np.array_equal(out, expected)


def test_queries_in_two_parts():
    given = case()
    random = np.random.default_rng(1)
    rope = random.standard_normal((3, 2, HEADS, 64)).astype(np.float16)
    given["kv_cache"] = random.standard_normal((9, 64, 1, 576)).astype(np.float16)
    edge = given["positions"], given["table"]
    turned = flashlatent.prepare_queries(rope, positions=edge[0], table=edge[1])
    expected = call(given, q_rope=turned)
    for got, right in zip(call(given, q_rope=rope, q_rotate=edge), expected):
        assert np.array_equal(got, right)


def test_keys_and_values():
    random = np.random.default_rng(2)
    q = random.standard_normal((2, 1, 8, 128)).astype(np.float16)
    keys, values = (random.standard_normal((4, 16, 2, 128)).astype(np.float16) for _ in range(2))
    pages = np.arange(4, dtype=np.int32).reshape(2, 2), np.array([20, 32], np.int32)
    angles = random.uniform(0, 6.28, (50, 64))
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    positions = np.array([[19], [31]])
    turned = flashlatent.prepare_queries(q, norm=1e-5, positions=positions, table=table, pairs="neox")
    expected = flashlatent.decode_kv(turned, keys, values, *pages, softmax_scale=0.1)
    got = flashlatent.decode_kv(q, keys, values, *pages, softmax_scale=0.1, q_norm=1e-5,
                                q_rotate=(positions, table, "neox"))
    for one, right in zip(got, expected):
        assert np.array_equal(one, right)


def prefill_case(dim=DIM, tokens=5):
    random = np.random.default_rng(3)
    angles = random.uniform(0, 6.28, (50, 32))
    rows = {"q": random.standard_normal((tokens, HEADS, dim)).astype(np.float16),
            "kv": random.standard_normal((90, 1, dim)).astype(np.float16),
            "indices": random.integers(-1, 91, (tokens, 1, 70), dtype=np.int32)}
    return rows, (random.integers(0, 50, tokens), np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32))


def prefill(rows, **options):
    return flashlatent.sparse_prefill(*rows.values(), softmax_scale=0.05, **options)


@pytest.mark.parametrize("scale_columns", [128, 32])
def test_sparse_prefill_has_the_bits_of_three_calls(scale_columns):
    rows, edge = prefill_case()
    rotation = {"positions": edge[0], "table": edge[1]}
    out, *numbers = prefill(rows | {"q": flashlatent.prepare_queries(rows["q"], norm=1e-6, **rotation)})
    fp8 = flashlatent.finish_outputs(out, scale_columns=scale_columns, groups=4, **rotation)
    rotated = flashlatent.finish_outputs(out, **rotation)
    options = {"q_norm": 1e-6, "q_rotate": flashlatent.Rotation(*edge), "out_rotate": edge}
    made = flashlatent.empty_fp8_output(out, tokens=5, heads=HEADS, groups=4, scale_columns=scale_columns)
    nothing, *same = prefill(rows, out_fp8=made, **options)
    assert nothing is None and all(map(np.array_equal, same, numbers)) and all(map(np.array_equal, made, fp8))
    got, *same = prefill(rows, **options)
    assert np.array_equal(got, rotated) and all(map(np.array_equal, same, numbers))
    both = np.empty_like(out)
    for array in made:
        array.fill(0)
    got, *_ = prefill(rows, out=both, out_fp8=made, **options)
    assert got is both and np.array_equal(both, rotated) and all(map(np.array_equal, made, fp8))


def test_sparse_prefill_of_queries_in_two_parts():
    rows, edge = prefill_case(dim=576)
    q, rope = rows["q"][..., :512], rows["q"][..., 512:]
    turned = flashlatent.prepare_queries(np.ascontiguousarray(rope), positions=edge[0], table=edge[1])
    expected = prefill(rows | {"q": q}, q_rope=turned)
    assert all(map(np.array_equal, prefill(rows | {"q": q}, q_rope=rope, q_rotate=edge), expected))
    with pytest.raises(ValueError, match="^q_norm is 0.5 and q_rope is "):
        prefill(rows | {"q": q}, q_rope=rope, q_norm=0.5)


def test_sparse_prefill_refuses_as_decode():
    rows, edge = prefill_case()
    wrong = {"q_norm is -1": {"q_norm": -1.0}, "q_rotate is a list": {"q_rotate": list(edge)},
             "q_rotate.pairs is 'gpt'": {"q_rotate": (*edge, "gpt")},
             "q_rotate.positions is ": {"q_rotate": (edge[0][:2], edge[1])},
             "out_rotate.table is ": {"out_rotate": (edge[0], edge[1][:, :24])},
             "out_fp8 is a tuple of 3": {"out_fp8": (1, 2, 3)},
             "out_fp8.codes is ": {"out_fp8": flashlatent.empty_fp8_output(rows["q"], tokens=4, heads=HEADS)},
             "out_rotate.positions has 50 for token 3; out_rotate.table has 50":
                 {"out_rotate": (np.where(np.arange(5) == 3, 50, edge[0]), edge[1])}}
    for words, options in wrong.items():
        with pytest.raises(ValueError, match="^" + words.replace("(", r"\(").replace(".", r"\.")):
            prefill(rows, **options)


def test_refusals():
    given = case()
    edge = given["positions"], given["table"]
    wrong = {
        "q_norm is -1": {"q_norm": -1.0},
        "q_norm is 9.99995e-41": {"q_norm": 1e-40},
        "q_rotate is a list": {"q_rotate": list(edge)},
        "q_rotate is a tuple of 1": {"q_rotate": edge[:1]},
        "q_rotate.pairs is 'gpt'": {"q_rotate": (*edge, "gpt")},
        "q_rotate.positions is ": {"q_rotate": (edge[0][:2], edge[1])},
        "out_rotate.table is ": {"out_rotate": (edge[0], edge[1][:, :24])},
        "out_rotate.table is missing": {"out_rotate": (edge[0], None)},
        "out_fp8 is a tuple of 3": {"out_fp8": (1, 2, 3)},
        "out_fp8.codes is None; codes and scales go together": {"out_fp8": (None, None)},
        "out_fp8.codes is ": {"out_fp8": flashlatent.empty_fp8_output(given["q"], tokens=5, heads=HEADS)},
    }
    for words, options in wrong.items():
        with pytest.raises(ValueError, match="^" + words.replace("(", r"\(").replace(".", r"\.")):
            call(given, **options)
    with pytest.raises(ValueError, match=r"^out_rotate\.positions has 50 for token 5; out_rotate\.table has 50"):
        call(given, out_rotate=(np.full_like(edge[0], 49) + (np.arange(6).reshape(3, 2) == 5), edge[1]))
    with pytest.raises(ValueError, match="^scale_columns is 64"):
        flashlatent.empty_fp8_output(given["q"], tokens=1, heads=8, scale_columns=64)
    with pytest.raises(ValueError, match="^groups is 3 and heads is 8"):
        flashlatent.empty_fp8_output(given["q"], tokens=1, heads=8, groups=3)
