"""The edges of a layer: queries before attention, outputs after it."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from .. import _edges, _native
from .._errors import InvalidArgumentError
from .._torch_call import call
from ._library import define

ROTATE = "Tensor? positions=None, Tensor? table=None, str pairs='gptj', str table_layout='halves'"
# For attention: a rotation is (positions, table); how pairs lie is said once for both.
EDGES = (", float q_norm=0., Tensor[]? q_rotate=None, Tensor[]? out_rotate=None, str pairs='gptj', "
         "str table_layout='halves'")
TOKEN_EDGES = (f"float norm=0., Tensor? norm_weight=None, Tensor? norm_bias=None, {ROTATE}, int ratio=1, "
               "str rounding='engine'")


_LAYOUTS = {"pairs": ("gptj", "neox"), "table_layout": ("halves", "interleaved")}


def with_edges(options):
    """Options of attention from those of an operator."""
    layout = [options.pop(name, names[0]) for name, names in _LAYOUTS.items()]
    for given, (name, names) in zip(layout, _LAYOUTS.items()):
        if given not in names:
            raise InvalidArgumentError(f"{name} is {given!r}; {names[0]!r} and {names[1]!r} are accepted")
    for name in ("q_rotate", "out_rotate"):
        rotation = options.get(name)
        if rotation is None:
            continue
        if len(rotation) != 2:
            raise InvalidArgumentError(f"{name} has {len(rotation)} tensors; two, positions and table, are expected")
        options[name] = (*rotation, *layout)
    return options


def _finish_outputs(out, **options):
    codes, scales = _edges.finish_outputs(out, **{"scale_columns": 128, **options})
    return codes.view(torch.float8_e4m3fn), scales


def _finish_outputs_fake(out, positions=None, table=None, pairs="gptj", table_layout="halves", scale_columns=128,
                         groups=1, column_order="heads"):
    return fp8_of_fakes(out, scale_columns, groups, column_order)


def fp8_of_fakes(out, scale_columns, groups, column_order="heads"):
    if scale_columns not in (128, 32):
        raise InvalidArgumentError(f"scale_columns is {scale_columns}; 128 and 32 are accepted")
    if groups < 1:
        raise InvalidArgumentError(f"groups is {groups}; a whole number from 1 to 65536 is expected")
    count, columns = out.shape[:-2].numel(), out.shape[-2] // groups * out.shape[-1]
    if column_order == "tiles":
        codes = out.new_empty((count, groups, columns), dtype=torch.float8_e4m3fn)
    else:
        codes = out.new_empty((groups, count, columns), dtype=torch.float8_e4m3fn).transpose(0, 1)
    dtype = torch.float32 if scale_columns == 128 else torch.int32
    return codes, out.new_empty((groups, columns // 128, (count + 3) // 4 * 4), dtype=dtype)


define(f"prepare_queries(Tensor q, *, float norm=0., {ROTATE}) -> Tensor", _native.prepare_queries,
       lambda q, **options: torch.empty_like(q, memory_format=torch.contiguous_format))
define(f"finish_outputs(Tensor out, *, {ROTATE}, int scale_columns=128, int groups=1, str column_order='heads') "
       "-> (Tensor, Tensor)", _finish_outputs, _finish_outputs_fake)


def prepare_queries(q: Tensor, *, norm: float = 0.0, positions: Optional[Tensor] = None, table: Optional[Tensor] = None,
                    pairs: str = "gptj", table_layout: str = "halves") -> Tensor:
    """Queries normalised and rotated, contiguous; see flashlatent.prepare_queries()."""
    return call(torch.ops.flashlatent.prepare_queries, q, norm=norm, positions=positions, table=table, pairs=pairs,
                table_layout=table_layout)


def finish_outputs(out: Tensor, *, positions: Optional[Tensor] = None, table: Optional[Tensor] = None,
                   pairs: str = "gptj", table_layout: str = "halves", scale_columns: int = 128,
                   groups: int = 1, column_order: str = "heads") -> Tuple[Tensor, Tensor]:
    """Rotates outputs back; returns (codes, scales), codes as float8_e4m3fn; see flashlatent.finish_outputs()."""
    return call(torch.ops.flashlatent.finish_outputs, out, positions=positions, table=table, pairs=pairs,
                table_layout=table_layout, scale_columns=scale_columns, groups=groups, column_order=column_order)
