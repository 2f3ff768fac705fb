"""prefill() and decode() of flash_mla.fused_norm_rope_attn_rope_cast, on this library: query norm and rotation, sparse
attention, inverse rotation of outputs and their cast to FP8 (DeepSeek V4, V4.1).

The edges are separate launches before and after the attention, which overlap its beginning and end. Queries are read
in their own order of columns: permute_q_b_proj() returns what it is given, and an engine that permutes their weights by
itself must not do so here. Outputs with a scale for 32 columns have the original's order, which permute_wv_proj() gives
to the weights behind them.
"""

import functools
import inspect
import math
import re
from typing import Optional, Tuple

import torch
from torch import Tensor

from .. import torch as operators
from .._arguments import shown
from .._errors import ArgumentTypeError, FlashLatentError, InvalidArgumentError
from . import flash_mla_interface as _interface
from ._formats import formats_of

__all__ = ["decode", "permute_q_b_proj", "permute_wv_proj", "prefill"]

_NAMES = (("positions", "token_positions"), ("table", "cos_sin_cache"), ("softmax_scale", "sm_scale"), ("v_dim", "d_v"),
          ("kv_cache", "k_cache"), ("extra_kv_cache", "extra_k_cache"), ("extra_indices", "extra_indices_in_kvcache"))
_WANTED = {bool: ((bool,), "True or False"), int: ((int,), "an integer"), float: ((int, float), "a number"),
           Tensor: ((Tensor,), "a torch.Tensor"), Optional[Tensor]: ((Tensor, type(None)), "a torch.Tensor")}


def _named(function):
    """Outside of torch.compile errors name the function's own arguments."""
    names = (*_NAMES, ("indices", "indices_in_kvcache")) if function.__name__ == "decode" else _NAMES
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **options):
        if torch.compiler.is_compiling():
            return function(*args, **options)
        try:
            return function(*args, **options)
        except FlashLatentError as error:
            text = str(error)
            for here, name in names:
                text = re.sub(rf"\b{here}\b", name, text)
            raise type(error)(text) from None
        except (AttributeError, IndexError, RuntimeError, TypeError):
            try:
                given = signature.bind(*args, **options).arguments
            except TypeError as error:
                raise ArgumentTypeError(f"{function.__name__}(): {error}") from None
            for name, value in given.items():
                types, wanted = _WANTED[signature.parameters[name].annotation]
                if not isinstance(value, types):
                    raise ArgumentTypeError(f"{name} is {shown(value)}; {wanted} is expected") from None
            raise

    return call


@_named
def prefill(enable_q_norm: bool, rms_norm_eps: float, token_positions: Tensor, is_rope_neox_style: bool, rope_dim: int,
            cos_sin_cache: Tensor, n_wv_group: int, num_per_channels: int, use_tma_aligned_col_major_sf: bool,
            round_sf: bool, use_packed_ue8m0: bool, q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float,
            d_v: int = 512, attn_sink: Optional[Tensor] = None, topk_length: Optional[Tensor] = None,
            use_legacy: bool = False) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sparse prefill with its edges; returns (out_fp8, out_sf, max_logits (s_q, h_q), lse (s_q, h_q)).

    enable_q_norm, rms_norm_eps  an RMS norm over each query head, without a weight
    token_positions     int32 or int64 (s_q)
    is_rope_neox_style  False: columns 2 i and 2 i + 1 turn together; True: i and i + rope_dim / 2
    rope_dim            the last columns of a head, those of cos_sin_cache
    cos_sin_cache       fp32 or bf16 (positions, rope_dim): all cosines, then all sines
    n_wv_group          heads are in so many groups
    num_per_channels    32: four ue8m0 scales in an int32 (use_packed_ue8m0=True); 128: fp32 scales, which DeepGEMM's
                        grouped product takes on Hopper (use_packed_ue8m0=False); the original has 32 alone
    use_tma_aligned_col_major_sf, round_sf  must be True
    q                   bf16 (s_q, h_q, d)
    kv, indices, sm_scale, d_v, attn_sink, topk_length, use_legacy  as in flash_mla_sparse_fwd()

    out_fp8  float8_e4m3fn (s_q, n_wv_group, h_q / n_wv_group * d_v). With num_per_channels=32 it is contiguous, and a
             group's columns are 32 of each head, then the next 32 of each; with 128 it is in memory group by group, and
             columns are head by head
    out_sf   int32 or fp32 (s_q, n_wv_group, h_q / n_wv_group * d_v / 128), tokens innermost and padded to 4
    """
    _check_cast(num_per_channels, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
    rotation = _rotation(token_positions, is_rope_neox_style, rope_dim, cos_sin_cache)
    q = operators.prepare_queries(q, norm=_epsilon(enable_q_norm, rms_norm_eps), **rotation)
    out, max_logits, lse = _interface.flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v, attn_sink, topk_length)
    return *_cast(out, rotation, num_per_channels, n_wv_group), max_logits, lse


@_named
def decode(enable_q_norm: bool, rms_norm_eps: float, token_positions: Tensor, is_rope_neox_style: bool, rope_dim: int,
           cos_sin_cache: Tensor, n_wv_group: int, num_per_channels: int, use_tma_aligned_col_major_sf: bool,
           round_sf: bool, use_packed_ue8m0: bool, q: Tensor, k_cache: Tensor, indices_in_kvcache: Tensor,
           sm_scale: float, d_v: int = 512, attn_sink: Optional[Tensor] = None, topk_length: Optional[Tensor] = None,
           extra_k_cache: Optional[Tensor] = None, extra_indices_in_kvcache: Optional[Tensor] = None,
           extra_topk_length: Optional[Tensor] = None, use_legacy: bool = False) -> Tuple[Tensor, Tensor, Tensor]:
    """Sparse decode with its edges; returns (out_fp8, out_sf, lse (s_q, h_q)).

    q                   bf16 (s_q, h_q, 512)
    indices_in_kvcache  int32 (s_q, topk); extra_indices_in_kvcache likewise
    topk_length, extra_topk_length  int32 (s_q)
    k_cache, extra_k_cache, sm_scale, attn_sink, use_legacy  as in flash_mla_with_kvcache()
    Other arguments and the results are as in prefill(). Each query token is a request.
    """
    _check_cast(num_per_channels, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
    rotation = _rotation(token_positions, is_rope_neox_style, rope_dim, cos_sin_cache)
    q = operators.prepare_queries(q, norm=_epsilon(enable_q_norm, rms_norm_eps), **rotation)
    options = formats_of(None, k_cache, extra_k_cache, use_legacy)._asdict()
    if extra_k_cache is not None:
        options.update(extra_kv_cache=extra_k_cache, extra_indices=_rows(extra_indices_in_kvcache),
                       extra_topk_length=extra_topk_length)  # torch 2.4 cannot trace |=
    out, lse = operators.decode(q[:, None], k_cache, indices=_rows(indices_in_kvcache), softmax_scale=sm_scale,
                                v_dim=d_v, topk_length=topk_length, attn_sink=attn_sink, **options)
    lse = lse[..., 0]
    return *_cast(out[:, 0], rotation, num_per_channels, n_wv_group), torch.where(lse == -math.inf, math.inf, lse)


def permute_q_b_proj(weight_and_sf: Tuple[Tensor, Tensor], h_q: int, d_q: int) -> Tuple[Tensor, Tensor]:
    """Returns `weight_and_sf`: queries are read in their own order of columns."""
    return weight_and_sf


def permute_wv_proj(weight_and_sf: Tuple[Tensor, Tensor], wv_group_size: int, d_o: int) -> Tuple[Tensor, Tensor]:
    """The weights of the projection behind attention, in the order of columns that out_fp8 has.

    weight_and_sf  a weight of bytes (n_wv_group, rows, wv_group_size * d_o), and its scales: int32, four ue8m0 for 32
                   columns each, (n_wv_group, rows, wv_group_size * d_o / 128); or fp32, for outputs with
                   num_per_channels=128, then both are returned as they are
    d_o            a multiple of 128
    Scales keep their strides.
    """
    weight, scales = weight_and_sf
    if scales.dtype != torch.int32:
        return weight_and_sf
    columns = wv_group_size * d_o
    if d_o % 128 or weight.element_size() != 1 or weight.shape[-1] != columns or scales.shape[-1] * 128 != columns:
        raise InvalidArgumentError(f"weight_and_sf has {weight.dtype} {tuple(weight.shape)} and {tuple(scales.shape)}, "
                                   f"with wv_group_size {wv_group_size} and d_o {d_o}; bytes of wv_group_size * d_o "
                                   "columns, an int32 for 128 of them, and d_o a multiple of 128 are expected")
    codes = _in_tiles(weight.view(torch.uint8), (wv_group_size, d_o // 32, 32)).view(weight.dtype)
    factors = _in_tiles(scales.contiguous().view(torch.uint8), (wv_group_size, d_o // 32, 1)).view(torch.int32)
    like = torch.empty_strided(scales.shape, scales.stride(), dtype=torch.int32, device=scales.device)
    return codes, like.copy_(factors)


def _in_tiles(rows, shape):
    """Rows of heads of tiles, as rows of tiles of heads."""
    return rows.unflatten(-1, shape).transpose(-3, -2).flatten(-3)


def _rows(indices):
    if isinstance(indices, Tensor) and indices.dim() == 2:
        return indices[:, None]
    return indices  # which is refused, or None


def _epsilon(enable_q_norm, rms_norm_eps):
    if enable_q_norm and not rms_norm_eps > 0:
        raise InvalidArgumentError(f"rms_norm_eps is {rms_norm_eps}; with enable_q_norm a positive number is expected")
    return float(rms_norm_eps) if enable_q_norm else 0.0


def _rotation(token_positions, is_rope_neox_style, rope_dim, cos_sin_cache):
    if cos_sin_cache.ndim != 2 or cos_sin_cache.shape[1] != rope_dim:
        raise InvalidArgumentError(f"cos_sin_cache is {cos_sin_cache.dtype} {tuple(cos_sin_cache.shape)} and rope_dim is "
                                   f"{rope_dim}; (positions, rope_dim) is expected")
    return {"positions": token_positions, "table": cos_sin_cache, "pairs": "neox" if is_rope_neox_style else "gptj"}


def _check_cast(num_per_channels, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0):
    if num_per_channels not in (32, 128):
        raise InvalidArgumentError(f"num_per_channels is {num_per_channels}; 32 and 128 are accepted")
    if bool(use_packed_ue8m0) is not (num_per_channels == 32):
        raise InvalidArgumentError(f"use_packed_ue8m0 is {use_packed_ue8m0} and num_per_channels is {num_per_channels}; "
                                   "True with 32 and False with 128 are accepted")
    for name, value in (("use_tma_aligned_col_major_sf", use_tma_aligned_col_major_sf), ("round_sf", round_sf)):
        if not value:
            raise InvalidArgumentError(f"{name} is {value}; True is accepted")


def _cast(out, rotation, num_per_channels, groups):
    if groups < 1 or out.shape[1] % groups:
        raise InvalidArgumentError(f"n_wv_group is {groups} and q has {out.shape[1]} heads; a divisor is expected")
    codes, scales = operators.finish_outputs(out, scale_columns=num_per_channels, groups=groups,
                                             column_order="tiles" if num_per_channels == 32 else "heads", **rotation)
    return codes, scales[..., :out.shape[0]].permute(2, 0, 1)
