"""The edges of a layer: queries on their way in, outputs on their way out, beside float64."""

import numpy as np
import pytest

import flashlatent


def turned(x, positions, table, pairs, layout, back=False):
    """The rotation by its definition, in float64. x: (tokens, heads, d)."""
    x, columns = x.astype(np.float64).copy(), table.shape[1]
    half = columns // 2
    angles = table[positions].astype(np.float64)
    cos, sin = (angles[:, :half], angles[:, half:]) if layout == "halves" else (angles[:, 0::2], angles[:, 1::2])
    cos, sin = cos[:, None], (-sin if back else sin)[:, None]
    part = x[..., -columns:]
    first, second = (part[..., 0::2], part[..., 1::2]) if pairs == "gptj" else (part[..., :half], part[..., half:])
    a, b = first * cos - second * sin, second * cos + first * sin
    if pairs == "gptj":
        part[..., 0::2], part[..., 1::2] = a, b
    else:
        part[..., :half], part[..., half:] = a, b
    return x


def case(tokens, heads, dim, columns, seed=0):
    random = np.random.default_rng(seed)
    q = random.standard_normal((tokens, heads, dim)).astype(np.float16)
    angles = random.uniform(0, 2 * np.pi, (50, columns // 2))
    return q, random.integers(0, 50, tokens), np.cos(angles), np.sin(angles)


def table_of(cos, sin, layout):
    if layout == "halves":
        return np.concatenate([cos, sin], 1).astype(np.float32)
    return np.stack([cos, sin], 2).reshape(len(cos), -1).astype(np.float32)


@pytest.mark.parametrize("pairs", ["gptj", "neox"])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("dim, columns", [(512, 64), (64, 64), (576, 32), (1024, 1024), (72, 16)])
def test_queries(pairs, layout, dim, columns):
    q, positions, cos, sin = case(5, 3, dim, columns)
    table = table_of(cos, sin, layout)
    for norm in (0, 1e-6, 0.5):
        for integers in (np.int32, np.int64):
            out = flashlatent.prepare_queries(q, norm=norm, positions=positions.astype(integers), table=table, pairs=pairs,
                                              table_layout=layout)
            x = q.astype(np.float64)
            if norm:
                x = x / np.sqrt((x * x).mean(-1, keepdims=True) + norm)
            expected = turned(x, positions, table, pairs, layout)
            assert out.dtype == q.dtype and np.abs(out - expected).max() <= 2**-10 * np.abs(expected).max()
    assert np.array_equal(flashlatent.prepare_queries(q), q)


def test_in_place_strided_and_two_leading_dimensions():
    q, positions, cos, sin = case(6, 4, 128, 64)
    table = table_of(cos, sin, "halves")
    options = {"norm": 1e-6, "positions": positions, "table": table, "pairs": "neox"}
    expected = flashlatent.prepare_queries(q, **options)
    outermost_heads = np.ascontiguousarray(q.swapaxes(0, 1)).swapaxes(0, 1)
    assert np.array_equal(flashlatent.prepare_queries(outermost_heads, **options), expected)
    odd = np.zeros((6, 4, 131), np.float16)[..., 3:]
    odd[:] = q
    flashlatent.prepare_queries(odd, out=odd, **options)
    assert np.array_equal(odd, expected)
    batched = flashlatent.prepare_queries(q.reshape(2, 3, 4, 128), **options | {"positions": positions.reshape(2, 3)})
    assert np.array_equal(batched.reshape(q.shape), expected)
    assert flashlatent.prepare_queries(q[:0], **options | {"positions": positions[:0]}).shape == (0, 4, 128)


def decode_e4m3(codes):
    sign, exponent, mantissa = codes >> 7, codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0**(exponent.astype(int) - 10))
    return np.where(codes & 127 == 127, np.nan, np.where(sign, -magnitude, magnitude))


@pytest.mark.parametrize("columns", [128, 32])
@pytest.mark.parametrize("tokens", [1, 4, 6])
def test_fp8_outputs(columns, tokens):
    out, positions, cos, sin = case(tokens, 8, 512, 64, seed=tokens)
    out[0, 0, :128] = 0
    out *= np.float16(2.0)**np.random.default_rng(3).integers(-6, 6, (tokens, 8, 1)).astype(np.float16)
    table = table_of(cos, sin, "halves")
    codes, scales = flashlatent.finish_outputs(out, positions=positions, table=table, scale_columns=columns, groups=4)
    assert codes.shape == (tokens, 4, 1024) and codes.swapaxes(0, 1).flags.c_contiguous
    padded = -(-tokens // 4) * 4
    assert scales.shape == (4, 8, padded) and not scales.view(np.uint32)[..., tokens:].any()
    expected = turned(out, positions, table, "gptj", "halves", back=True).reshape(tokens, 4, 1024 // columns, columns)
    amax = np.maximum(np.abs(expected.astype(np.float32)).max(-1), np.float32(1e-10))
    wanted = np.exp2(np.ceil(np.log2(amax.astype(np.float64) / 448)))
    if columns == 128:
        factors = scales[..., :tokens].transpose(2, 0, 1).astype(np.float64)
    else:
        bytes_ = np.ascontiguousarray(scales[..., :tokens].transpose(2, 0, 1)).view(np.uint8).reshape(tokens, 4, -1)
        factors = np.exp2(bytes_.astype(np.float64) - 127)
    assert np.array_equal(factors, wanted)
    exact = expected / factors[..., None]
    found = decode_e4m3(codes.reshape(exact.shape))
    step = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-6))), -6) - 3)
    assert (np.abs(found - exact) <= step / 2 * 1.001).all()

    if columns == 128:
        return
    tiles, tile_scales = flashlatent.finish_outputs(out, positions=positions, table=table, scale_columns=32, groups=4,
                                                    column_order="tiles")
    assert tiles.flags.c_contiguous
    assert np.array_equal(tiles, codes.reshape(tokens, 4, 2, 16, 32).swapaxes(2, 3).reshape(codes.shape))
    tile_bytes = np.ascontiguousarray(tile_scales.transpose(2, 0, 1)).view(np.uint8)
    assert np.array_equal(tile_bytes[:tokens], bytes_.reshape(tokens, 4, 2, 16).swapaxes(2, 3).reshape(bytes_.shape))
    assert not tile_bytes[tokens:].any()


def test_rotated_outputs_return_to_the_queries():
    q, positions, cos, sin = case(3, 2, 64, 32)
    options = {"positions": positions, "table": table_of(cos, sin, "interleaved"), "table_layout": "interleaved"}
    back = flashlatent.finish_outputs(flashlatent.prepare_queries(q, **options), **options)
    assert np.abs(back.astype(float) - q).max() < 0.01


def test_nan_and_infinity_become_nan_codes():
    out = np.ones((1, 1, 128), np.float16)
    out[0, 0, 5], out[0, 0, 9] = np.inf, np.nan
    codes, scales = flashlatent.finish_outputs(out, scale_columns=128)
    assert codes[0, 0, 5] == codes[0, 0, 9] == 0x7F and scales[0, 0, 0] == 2.0**-8 and codes[0, 0, 0] == 0x78


@pytest.mark.parametrize("options, message", [
    ({"q": np.zeros((2, 3), np.float16)}, "q is .*expected bf16 or fp16"),
    ({"q": np.zeros((2, 3, 60), np.float16)}, "q is .*a multiple of 8 elements up to 1024"),
    ({"norm": -1.0}, "norm is -1; a finite epsilon"),
    ({"norm": float("nan")}, "norm is nan"),
    ({"norm": 1e-40}, "norm is 9.99.*e-41; a finite epsilon of 0 .no norm., or of 1.2e-38 or more"),
    ({"positions": None}, "^positions is missing; positions and table go together"),
    ({"table": None}, "^table is missing"),
    ({"positions": np.zeros(3, np.int32)}, "positions is .*wrong shape"),
    ({"positions": np.array([0, 50], np.int32)}, "positions has 50 for token 1; table has 50 positions"),
    ({"positions": np.array([0, -1], np.int32)}, "positions has -1 for token 1"),
    ({"table": np.zeros((50, 128), np.float32)}, "table is .*a multiple of 16 columns"),
    ({"table": np.zeros((50, 64), np.float64)}, "table has elements of type float64; fp32 and bf16 are accepted"),
    ({"table": np.zeros((50, 64), np.float16)}, "table is fp16 .*; fp32 and bf16 are accepted"),
    ({"positions": np.zeros(2)}, "positions has elements of type float64; int32 and int64 are accepted"),
    ({"pairs": "llama"}, "pairs is 'llama'; 'gptj' and 'neox' are accepted"),
    ({"table_layout": "pairs"}, "table_layout is 'pairs'; 'halves' and 'interleaved'"),
    ({"out": np.zeros((2, 3, 56), np.float16)}, "out is .*wrong shape"),
])
def test_refusals(options, message):
    arguments = {"q": np.zeros((2, 3, 64), np.float16), "positions": np.zeros(2, np.int32),
                 "table": np.zeros((50, 64), np.float32)} | options
    with pytest.raises(flashlatent.FlashLatentError, match=message):
        flashlatent.prepare_queries(arguments.pop("q"), **arguments)


@pytest.mark.parametrize("options, message", [
    ({"scale_columns": 64}, "scale_columns is 64; 128, 32 and None are accepted"),
    ({"scale_columns": [128]}, "scale_columns is a list; 128, 32 and None"),
    ({"groups": 3}, r"groups is 3 and out is \(2, 4, 128\)"),
    ({"groups": "x"}, "groups is 'x'; a whole number from 1"),
    ({"column_order": "rows"}, "column_order is 'rows'; 'heads' and 'tiles' are accepted"),
    ({"column_order": "tiles"}, "column_order is 'tiles' and scale_columns is 128; 32 is expected"),
    ({"scale_columns": None, "groups": 2}, "groups is 2 and scale_columns is not given"),
    ({"scale_columns": None, "column_order": "tiles"}, "column_order is 'tiles' and scale_columns is not given"),
    ({"out": [[[1.0]]]}, "out is a list; an array is expected"),
    ({"out": [[[1.0]]], "scale_columns": None}, "out is a list; an array is expected"),
    ({"out": np.zeros(128, np.float16)}, r"out is fp16 \(128\)"),
    ({"codes": None}, r"codes is no argument of finish_outputs\(\)"),
    ({"out": np.zeros((2, 4, 64), np.float16)}, "out is .*a multiple of 128 elements"),
])
def test_output_refusals(options, message):
    arguments = {"out": np.zeros((2, 4, 128), np.float16), "scale_columns": 128} | options
    with pytest.raises(flashlatent.FlashLatentError, match=message):
        flashlatent.finish_outputs(arguments.pop("out"), **arguments)
