"""The edges of a layer as torch operators, on every device: the bits of NumPy's calls, in bf16 too."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashlatent
import flashlatent.torch as operators
from test_torch import DEVICES

pytestmark = pytest.mark.parametrize("device", DEVICES)


def case(tokens, heads, dim, columns, dtype, device):
    generator = torch.Generator().manual_seed(tokens)
    q = torch.randn(tokens, heads, dim, generator=generator).to(dtype)
    angles = torch.rand(50, columns // 2, generator=generator) * 6.28
    table = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.randint(0, 50, (tokens,), generator=generator)
    return q.to(device), positions.to(device), table.to(device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairs", ["gptj", "neox"])
@pytest.mark.parametrize("dim, columns", [(512, 64), (64, 64), (1024, 96), (200, 48)])
def test_bits_are_those_of_the_host(device, dtype, pairs, dim, columns):
    for table_dtype in (torch.float32, torch.bfloat16):
        q, positions, table = case(9, 5, dim, columns, dtype, device)
        table = table.to(table_dtype)
        for norm in (0.0, 1e-6):
            out = operators.prepare_queries(q, norm=norm, positions=positions, table=table, pairs=pairs)
            host = flashlatent.prepare_queries(q.cpu(), norm=norm, positions=positions.cpu(), table=table.cpu(),
                                               pairs=pairs)
            assert torch.equal(out.cpu(), host)
        strided = torch.empty(5, 9, dim + 3, dtype=dtype, device=device)[..., 3:].transpose(0, 1)
        strided.copy_(q)
        flashlatent.prepare_queries(strided, positions=positions.int(), table=table, pairs=pairs, out=strided)
        assert torch.equal(strided, operators.prepare_queries(q, positions=positions, table=table, pairs=pairs))


@pytest.mark.parametrize("scale_columns", [128, 32])
@pytest.mark.parametrize("tokens, heads, groups", [(1, 64, 8), (7, 16, 2), (64, 128, 16)])
def test_fp8_bits_are_those_of_the_host(device, scale_columns, tokens, heads, groups):
    out, positions, table = case(tokens, heads, 512, 64, torch.bfloat16, device)
    out[0, 0, 3] = float("inf")
    out[0, 1] = 0
    options = {"scale_columns": scale_columns, "groups": groups}
    codes, scales = operators.finish_outputs(out, positions=positions, table=table, **options)
    there, there_scales = flashlatent.finish_outputs(out.cpu(), positions=positions.cpu(), table=table.cpu(), **options)
    assert codes.dtype == torch.float8_e4m3fn and codes.transpose(0, 1).is_contiguous()
    assert torch.equal(codes.cpu().view(torch.uint8), there) and torch.equal(scales.cpu(), there_scales)

    if scale_columns == 128:
        return
    options["column_order"] = "tiles"
    tiles, tile_scales = operators.finish_outputs(out, positions=positions, table=table, **options)
    host, host_scales = flashlatent.finish_outputs(out.cpu(), positions=positions.cpu(), table=table.cpu(), **options)
    assert tiles.is_contiguous() and torch.equal(tiles.cpu().view(torch.uint8), host)
    assert torch.equal(tile_scales.cpu(), host_scales)


def test_compiles(device):
    out, positions, table = case(3, 16, 512, 64, torch.bfloat16, device)

    def step(out):
        q = operators.prepare_queries(out, norm=1e-6, positions=positions, table=table)
        options = {"positions": positions, "table": table, "groups": 4}
        tiles = operators.finish_outputs(q, scale_columns=32, column_order="tiles", **options)
        return *operators.finish_outputs(q, **options), *tiles

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    for found, expected in zip(compiled(out), step(out)):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_positions_outside_of_the_table(device):
    out, positions, table = case(3, 2, 128, 64, torch.bfloat16, device)
    positions[1] = 50
    if device == "cpu":
        with pytest.raises(ValueError, match="positions has 50 for token 1"):
            operators.prepare_queries(out, positions=positions, table=table)
        return
    found = operators.prepare_queries(out, positions=positions, table=table)
    assert found[1, :, 64:].isnan().all() and torch.equal(found[1, :, :64], out[1, :, :64])
    assert not found[0].isnan().any() and not found[2].isnan().any()


def test_true_is_no_number(device):
    out, _, _ = case(3, 2, 128, 64, torch.bfloat16, device)
    for options in ({"norm": True}, {"groups": True}, {"scale_columns": True}):
        operator = operators.prepare_queries if "norm" in options else operators.finish_outputs
        with pytest.raises(flashlatent.ArgumentTypeError, match=f"^{next(iter(options))} is True; an? "):
            operator(out, **options)
