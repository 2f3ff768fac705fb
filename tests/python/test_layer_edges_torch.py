"""The edges of a layer as options of torch operators, on every device."""

import pytest

torch = pytest.importorskip("torch")

import flashlatent.torch as operators
from test_torch import DEVICES

pytestmark = pytest.mark.parametrize("device", DEVICES)


def case(device, batch=3, heads=16):
    generator = torch.Generator().manual_seed(1)
    angles = torch.rand(50, 32, generator=generator) * 6.28
    return [tensor.to(device) for tensor in (
        torch.randn(batch, 1, heads, 512, generator=generator).bfloat16(),
        torch.randn(3 * batch, 64, 1, 512, generator=generator).bfloat16(),
        torch.randperm(3 * batch, generator=generator).int().view(batch, 3),
        torch.randint(1, 190, (batch,), generator=generator, dtype=torch.int32),
        torch.randint(0, 50, (batch, 1), generator=generator), torch.cat([angles.cos(), angles.sin()], 1))]


def test_operators_have_the_bits_of_three(device):
    q, cache, pages, lengths, positions, table = case(device)
    prepared = operators.prepare_queries(q, norm=1e-6, positions=positions, table=table)
    out, lse = operators.decode(prepared, cache, pages, lengths, softmax_scale=0.05)
    codes, scales = operators.finish_outputs(out, positions=positions, table=table, groups=4)
    edges = {"q_norm": 1e-6, "q_rotate": [positions, table], "out_rotate": [positions, table]}
    for plan in (None, operators.plan(q, cache, pages, lengths, q_edge=True, out_edge=True)):
        got = operators.decode_fp8(q, cache, pages, lengths, softmax_scale=0.05, groups=4, plan=plan, **edges)
        assert got[0].dtype == torch.float8_e4m3fn
        assert torch.equal(got[0].view(torch.uint8), codes.view(torch.uint8))
        assert torch.equal(got[1], scales) and torch.equal(got[2], lse)
        turned, same = operators.decode(q, cache, pages, lengths, softmax_scale=0.05, plan=plan, **edges)
        into = torch.empty_like(out)
        operators.decode_out(q, cache, pages, lengths, softmax_scale=0.05, out=into, lse=lse, plan=plan, **edges)
        assert torch.equal(turned, into) and torch.equal(same, lse)


def test_compiles(device):
    q, cache, pages, lengths, positions, table = case(device)

    def layer(q):
        return operators.decode_fp8(q, cache, pages, lengths, softmax_scale=0.05, q_norm=1e-6,
                                    q_rotate=[positions, table], out_rotate=[positions, table], scale_columns=32)

    expected = layer(q)
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(q)
    for one, right in zip(got, expected):
        assert torch.equal(one.view(torch.uint8), right.view(torch.uint8))


def prefill_case(device, tokens=6, heads=16):
    generator = torch.Generator().manual_seed(2)
    angles = torch.rand(50, 32, generator=generator) * 6.28
    return [tensor.to(device) for tensor in (
        torch.randn(tokens, heads, 512, generator=generator).bfloat16(),
        torch.randn(300, 1, 512, generator=generator).bfloat16(),
        torch.randint(0, 300, (tokens, 1, 128), generator=generator, dtype=torch.int32),
        torch.randint(0, 50, (tokens,), generator=generator), torch.cat([angles.cos(), angles.sin()], 1))]


@pytest.mark.parametrize("scale_columns", [128, 32])
def test_sparse_prefill_has_the_bits_of_three(device, scale_columns):
    q, kv, indices, positions, table = prefill_case(device)
    prepared = operators.prepare_queries(q, norm=1e-6, positions=positions, table=table, pairs="neox")
    out, *numbers = operators.sparse_prefill(prepared, kv, indices, softmax_scale=0.05)
    turn = {"positions": positions, "table": table, "pairs": "neox"}
    fp8 = operators.finish_outputs(out, scale_columns=scale_columns, groups=4, **turn)
    edges = {"q_norm": 1e-6, "q_rotate": [positions, table], "out_rotate": [positions, table], "pairs": "neox"}
    got = operators.sparse_prefill_fp8(q, kv, indices, softmax_scale=0.05, scale_columns=scale_columns, groups=4, **edges)
    assert got[0].dtype == torch.float8_e4m3fn
    for one, right in zip(got, (*fp8, *numbers)):
        assert torch.equal(one.view(torch.uint8), right.view(torch.uint8))
    turned, *same = operators.sparse_prefill(q, kv, indices, softmax_scale=0.05, **edges)
    into = [torch.empty_like(tensor) for tensor in (out, *numbers)]
    operators.sparse_prefill_out(q, kv, indices, softmax_scale=0.05, **dict(zip(("out", "max_logits", "lse"), into)), **edges)
    assert torch.equal(turned, into[0]) and all(map(torch.equal, same, numbers)) and all(map(torch.equal, into[1:], numbers))


def test_sparse_prefill_compiles(device):
    q, kv, indices, positions, table = prefill_case(device)

    def layer(q):
        return operators.sparse_prefill_fp8(q, kv, indices, softmax_scale=0.05, q_norm=1e-6, q_rotate=[positions, table],
                                            out_rotate=[positions, table], scale_columns=32)

    expected = layer(q)
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(q)
    for one, right in zip(got, expected):
        assert torch.equal(one.view(torch.uint8), right.view(torch.uint8))
    torch.library.opcheck(torch.ops.flashlatent.sparse_prefill_fp8, (q, kv, indices),
                          {"softmax_scale": 0.05, "out_rotate": [positions, table]})


def test_refusals_of_operators(device):
    q, kv, indices, positions, table = prefill_case(device)
    pair = [positions, table]
    wrong = {
        "q_rotate has 1 tensors; two, positions and table,": {"q_rotate": pair[:1]},
        "out_rotate has 0 tensors": {"out_rotate": []},
        "q_rotate has 3 tensors": {"q_rotate": [*pair, table]},
        "pairs is 'gpt'; 'gptj' and 'neox'": {"pairs": "gpt"},
        "table_layout is 'x'; 'halves' and 'interleaved'": {"table_layout": "x", "q_rotate": pair},
    }
    for words, options in wrong.items():
        for operator in (operators.sparse_prefill, operators.sparse_prefill_fp8):
            with pytest.raises(ValueError, match="^" + words):
                operator(q, kv, indices, softmax_scale=0.05, **options)
    with pytest.raises(ValueError, match="^q has 2 dimensions"):
        operators.sparse_prefill_fp8(q[0], kv, indices, softmax_scale=0.05)
    # Shapes alone are refused in the same words.
    alone = [tensor.to("meta") for tensor in (q, kv, indices)]
    for words, options in {"scale_columns is 64; 128 and 32": {"scale_columns": 64}, "groups is 0; a": {"groups": 0}}.items():
        for tensors in ((q, kv, indices), alone):
            with pytest.raises(ValueError, match="^" + words):
                operators.sparse_prefill_fp8(*tensors, softmax_scale=0.05, **options)
