"""Sparse prefill of torch tensors: the function, the operators and the drop-in, on each device."""

import math

import pytest

torch = pytest.importorskip("torch")

import flashlatent
import flashlatent.torch
from flashlatent import flash_mla
from test_flash_mla import spaced
from test_sparse_prefill import Prefill
from test_torch import DEVICES


def tensors(case, device="cpu"):
    q, kv, indices = (torch.from_numpy(array).to(device) for array in (case.q, case.kv, case.indices))
    if case.dtype == "bf16":
        q, kv = q.view(torch.bfloat16), kv.view(torch.bfloat16)
    lengths, sink = (None if array is None else torch.from_numpy(array).to(device)
                     for array in (case.topk_length, case.attn_sink))
    return q, kv, indices, {"topk_length": lengths, "attn_sink": sink}


def check(case, out, max_logits, lse):
    case.check(out.double().cpu(), max_logits.cpu(), lse.cpu())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_function_and_operators(dtype, device):
    case = Prefill(dtype=dtype, lengths=True, sink=True)
    q, kv, indices, options = tensors(case, device)
    options["softmax_scale"] = case.scale
    results = flashlatent.sparse_prefill(q, kv, indices, **options)
    assert results[0].dtype == q.dtype
    check(case, *results)
    check(case, *flashlatent.torch.sparse_prefill(q, kv, indices, **options))
    made = {"out": torch.full((5, 9, 512), math.nan, dtype=q.dtype, device=device),
            "max_logits": torch.full((5, 9), math.nan, device=device),
            "lse": torch.full((5, 9), math.nan, device=device)}
    flashlatent.torch.sparse_prefill_out(q, kv, indices, **options, **made)
    check(case, *made.values())


@pytest.mark.parametrize("device", DEVICES)
def test_operator_compiles_and_fakes_agree(device):
    case = Prefill(lengths=True, sink=True)
    q, kv, indices, options = tensors(case, device)

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def layer(q, kv, indices, options):
        return flashlatent.torch.sparse_prefill(q, kv, indices, softmax_scale=case.scale, **options)

    check(case, *layer(q, kv, indices, options))
    torch.library.opcheck(torch.ops.flashlatent.sparse_prefill, (q, kv, indices),
                          {"softmax_scale": case.scale, **options})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("given", ["contiguous", "spaced", "out"])
def test_drop_in(given, compiled, device):
    case = Prefill(lengths=True, sink=True)
    q, kv, indices, options = tensors(case, device)
    if given == "spaced":
        q, kv, indices = (spaced(tensor, device) for tensor in (q, kv, indices))
    elif given == "out":  # some rows of a larger tensor
        options["out"] = torch.full((7, 9, 512), math.nan, dtype=q.dtype, device=device)[1:6]
    call = flash_mla.flash_mla_sparse_fwd
    if compiled:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    out, max_logits, lse = call(q, kv, indices, case.scale, **options)
    if given == "out":
        assert out.data_ptr() == options["out"].data_ptr()
    empty = torch.from_numpy(case.expected()[2] == -math.inf).to(device)
    assert empty[1].all() and (lse[empty] == math.inf).all() and (max_logits[empty] == -math.inf).all()
    check(case, out, max_logits, torch.where(empty, -math.inf, lse))


def test_a_layout_that_no_operator_takes():
    q, kv, indices, options = tensors(Prefill())
    with pytest.raises(flashlatent.InvalidArgumentError, match="kv has the layout torch.sparse_coo"):
        flashlatent.torch.sparse_prefill(q, kv.to_sparse(), indices, softmax_scale=1.0, **options)


def test_drop_in_by_position():
    case = Prefill()
    q, kv, indices, _ = tensors(case)
    check(case, *(torch.where(x == math.inf, -math.inf, x) for x in flash_mla.flash_mla_sparse_fwd(
        q, kv, indices, case.scale, 512, None, None)))
    with pytest.raises(flashlatent.InvalidArgumentError, match="d_v is 600"):
        flash_mla.flash_mla_sparse_fwd(q, kv, indices, case.scale, 600)
    with pytest.raises(flashlatent.InvalidArgumentError, match="sm_scale is nan"):
        flash_mla.flash_mla_sparse_fwd(q, kv, indices, math.nan)
