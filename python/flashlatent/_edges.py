"""The edges of an attention layer: outputs rotated back and cast to FP8."""

from collections.abc import Hashable
from typing import Any, NamedTuple

from . import _native
from ._arguments import named, shown, whole_number
from ._arrays import empty_like
from ._errors import ArgumentTypeError, InvalidArgumentError

_SCALE_COLUMNS = 128
_TOKEN_PADDING = 4
_SCALE_DTYPES = {128: "float32", 32: "int32"}


class Rotation(NamedTuple):
    """A rotation by position; fields as the arguments of prepare_queries()."""

    positions: Any
    table: Any
    pairs: str = "gptj"
    table_layout: str = "halves"


@named
def empty_fp8_output(like, *, tokens, heads, v_dim=512, groups=1, scale_columns=128):
    """(codes, scales) for `out_fp8` of decode(), not initialised, of like's package on its device.

    tokens         query tokens in all: batch * s_q, or those of a ragged q
    v_dim          of a head, a multiple of 128
    groups, scale_columns, and what is made  as in finish_outputs()
    """
    if not isinstance(scale_columns, Hashable) or scale_columns not in _SCALE_DTYPES:
        raise InvalidArgumentError(f"scale_columns is {shown(scale_columns)}; 128 and 32 are accepted")
    tokens, heads = whole_number("tokens", tokens, 0, 2**31 - 1), whole_number("heads", heads, 1, 2**16)
    groups, v_dim = whole_number("groups", groups, 1, 2**16), whole_number("v_dim", v_dim, 1, 1024)
    if heads % groups:
        raise InvalidArgumentError(f"groups is {groups} and heads is {heads}; a divisor of heads is expected")
    if v_dim % _SCALE_COLUMNS:
        raise InvalidArgumentError(f"v_dim is {v_dim}; a multiple of {_SCALE_COLUMNS} is expected")
    return _empty(like, tokens, heads // groups * v_dim, groups, scale_columns)


def _empty(like, tokens, columns, groups, scale_columns, column_order="heads"):
    padded = -(-tokens // _TOKEN_PADDING) * _TOKEN_PADDING
    if column_order == "tiles":
        codes = empty_like(like, (tokens, groups, columns), "uint8")
    else:
        codes = empty_like(like, (groups, tokens, columns), "uint8").swapaxes(0, 1)
    return (codes,
            empty_like(like, (groups, columns // _SCALE_COLUMNS, padded), _SCALE_DTYPES[scale_columns]))


@named
def finish_outputs(out, *, positions=None, table=None, pairs="gptj", table_layout="halves", rotated=None,
                   scale_columns=None, groups=1, column_order="heads", dtype=None, stream=None, threads=0):
    """Rotates outputs back and casts them to FP8; returns (codes, scales), or with scale_columns=None `rotated`.

    out            bf16 or fp16 (tokens, h_q, v_dim) or (batch, s_q, h_q, v_dim); v_dim a multiple of 8 up to 1,024
    positions, table, pairs, table_layout  as in prepare_queries(); the rotation goes back. positions=None: none
    rotated        where rotated outputs go, as out; may be out itself. Made if neither it nor scale_columns is given
    scale_columns  128: a fp32 scale for 128 columns; 32: a ue8m0 byte for 32, four in an int32. v_dim is then a
                   multiple of 128
    groups         h_q / groups heads are one row of the projection behind attention
    column_order   of a group: 'heads', head by head; 'tiles', with scale_columns=32: 32 columns of each head, then the
                   next 32 of each (flash_mla's fused calls)
    dtype          'bf16': 16-bit integers hold bf16

    codes   uint8 (tokens, groups, h_q / groups * v_dim), e4m3; in memory (groups, tokens, ...), as DeepGEMM's grouped
            product on Hopper takes it, or with 'tiles' contiguous
    scales  (groups, h_q / groups * v_dim / 128, padded tokens), tokens rounded up to a multiple of 4; 0 behind the last
    A scale is 2^ceil(log2(max(amax, 1e-10) / 448)), amax being the largest magnitude of its columns.
    Raises InvalidArgumentError for what does not fit, by name.
    """
    options = {"positions": positions, "table": table, "pairs": pairs, "table_layout": table_layout,
               "column_order": column_order, "dtype": dtype, "stream": stream, "threads": threads}
    shape = getattr(out, "shape", None)
    if not isinstance(shape, tuple) or len(shape) not in (3, 4):
        _native.finish_outputs_into(out, **options)  # refuses what has no heads
        raise ArgumentTypeError(f"out is {shown(out)}; an array with a shape is expected")
    if scale_columns is None:
        for name, value, absent in (("groups", groups, 1), ("column_order", column_order, "heads")):
            if value != absent:
                raise InvalidArgumentError(f"{name} is {shown(value)} and scale_columns is not given; "
                                           f"{name} is for an FP8 output, with scale_columns=128 or 32")
        if rotated is None:
            rotated = empty_like(out, tuple(shape))
        _native.finish_outputs_into(out, rotated=rotated, **options)
        return rotated
    if not isinstance(scale_columns, Hashable) or scale_columns not in _SCALE_DTYPES:
        raise InvalidArgumentError(f"scale_columns is {shown(scale_columns)}; 128, 32 and None are accepted")
    if column_order == "tiles" and scale_columns != 32:
        raise InvalidArgumentError(f"column_order is 'tiles' and scale_columns is {scale_columns}; 32 is expected")
    *tokens, heads, v_dim = shape
    groups = whole_number("groups", groups, 1, 2**31 - 1)
    if heads % groups:
        raise InvalidArgumentError(f"groups is {groups} and out is {tuple(shape)}; a divisor of its heads is expected")
    codes, scales = _empty(out, tokens[0] if len(tokens) == 1 else tokens[0] * tokens[1], heads // groups * v_dim, groups,
                           scale_columns, column_order)
    _native.finish_outputs_into(out, rotated=rotated, codes=codes, scales=scales, **options)
    return codes, scales
