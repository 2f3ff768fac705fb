"""Sparse prefill of torch tensors: the function, the operators and the drop-in, on each device."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashlatent
import flashlatent.torch
from flashlatent import flash_mla
from oracle import bf16_bits, e4m3_values
from test_flash_mla import spaced
from test_sparse_prefill import Prefill
from test_torch import DEVICES, capture


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
def test_without_largest_scores(device):
    case = Prefill(lengths=True, sink=True)
    q, kv, indices, options = tensors(case, device)
    options |= {"softmax_scale": case.scale, "with_max_logits": False}
    out, max_logits, lse = flashlatent.torch.sparse_prefill(q, kv, indices, **options)
    assert max_logits.shape == (0,)
    with_them = flashlatent.torch.sparse_prefill(q, kv, indices, **{**options, "with_max_logits": True})
    assert torch.equal(out, with_them[0]) and torch.equal(lse, with_them[2])
    for name, value in (("with_max_logits", None), ("with_max_logits", 0), ("check_inputs", 1)):
        with pytest.raises(flashlatent.ArgumentTypeError, match=f"^{name} is {value}; True or False is expected"):
            flashlatent.torch.sparse_prefill(q, kv, indices, **{**options, name: value})
    torch.library.opcheck(torch.ops.flashlatent.sparse_prefill, (q, kv, indices), options)


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_are_not_checked_unasked(device):
    case = Prefill(lengths=True)
    q, kv, indices, options = tensors(case, device)
    options["softmax_scale"] = case.scale
    expected = flashlatent.torch.sparse_prefill(q, kv, indices, **options)
    options["topk_length"] = torch.where(options["topk_length"] == 0, -4, options["topk_length"])
    for given, again in zip(flashlatent.torch.sparse_prefill(q, kv, indices, **options), expected):
        assert torch.equal(given, again)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"topk_length\[3\] is -4"):
        flashlatent.torch.sparse_prefill(q, kv, indices, check_inputs=True, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", [16, 70])
def test_e4m3_queries(heads, device):
    generator = torch.Generator().manual_seed(heads)
    pages = torch.randn((24, 4, 1, 576), generator=generator).bfloat16().to(device)
    cache = flashlatent.convert_cache(pages, format="e4m3")
    q = torch.randn((5, heads, 576), generator=generator).to(torch.float8_e4m3fn).to(device)
    indices = torch.randint(0, 96, (5, 1, 70), generator=generator, dtype=torch.int32).to(device)
    options = {"softmax_scale": 576**-0.5, "q_scale": torch.full((heads,), 0.5, device=device),
               "kv_scale": torch.ones(1, device=device), "kv_format": "e4m3"}
    out, max_logits, lse = flashlatent.torch.sparse_prefill(q, cache, indices, **options)
    # Of all its checks one multiplies arguments, which torch cannot do with float8.
    torch.library.opcheck(torch.ops.flashlatent.sparse_prefill, (q, cache, indices), options,
                          test_utils="test_faketensor")
    assert out.dtype == torch.bfloat16
    plain = q.float().mul(0.5).bfloat16()
    rows = cache.view(torch.float8_e4m3fn).to(torch.bfloat16).view(96, 1, 576)
    expected = flashlatent.sparse_prefill(plain, rows, indices, softmax_scale=576**-0.5)
    assert (out.float() - expected[0].float()).norm() < 0.05 * expected[0].float().norm()
    torch.testing.assert_close(max_logits, expected[1], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(lse, expected[2], rtol=2e-3, atol=2e-3)


def two_caches(case, device, e4m3):
    """The case's rows in pages of 4 tokens, its last indices by a second cache with the same tokens: (q, kv, indices,
    options)."""
    case.kv[case.kv.shape[0] // 2] = case.kv[0]
    options = {}
    if e4m3:
        codes = np.random.default_rng(7).integers(0, 0x60, case.kv.shape).astype(np.uint8)
        scale = np.float32(0.25)
        case.kv = bf16_bits(e4m3_values()[codes] * scale)
        kv = torch.from_numpy(codes).to(device).view(torch.float8_e4m3fn)
        options["kv_scale"] = torch.tensor([scale], device=device)
    else:
        kv = tensors(case, device)[1]
    kv = kv.reshape(-1, 4, *kv.shape[1:])
    q, _, indices, others = tensors(case, device)
    options |= others | {"softmax_scale": case.scale, "extra_kv_cache": kv.clone(),
                         "extra_indices": indices[..., 40:].contiguous()}
    return q, kv, indices[..., :40].contiguous(), options


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("e4m3", [False, True])
@pytest.mark.parametrize("heads, d", [(9, 576), (70, 576), (9, 512)])
def test_two_caches(heads, d, e4m3, device):
    case = Prefill(heads=heads, d=d, sink=True)
    q, kv, indices, options = two_caches(case, device, e4m3)
    check(case, *flashlatent.sparse_prefill(q, kv, indices, **options))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(q, kv, indices, options):
        return flashlatent.torch.sparse_prefill(q, kv, indices, **options)

    torch.compiler.reset()
    check(case, *layer(q, kv, indices, options))
    # Only what traces: other checks compare float8 tensors, which torch cannot.
    torch.library.opcheck(torch.ops.flashlatent.sparse_prefill, (q, kv, indices), options,
                          test_utils=("test_schema", "test_faketensor") if not e4m3 else ("test_faketensor",))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("e4m3", [False, True])
def test_cuda_graph(e4m3, device):
    """A captured call follows what is in memory when it is replayed."""
    if device == "cpu":
        pytest.skip("needs a GPU")
    case = Prefill(sink=True)
    q, kv, indices, options = two_caches(case, device, e4m3)
    made = {"out": torch.full((5, 9, 512), math.nan, dtype=q.dtype, device=device),
            "max_logits": torch.full((5, 9), math.nan, device=device), "lse": torch.full((5, 9), math.nan, device=device)}
    with torch.cuda.device(device):
        flashlatent.torch.sparse_prefill_out(q, kv, indices, **options, **made)
        graph = torch.cuda.CUDAGraph()
        with capture(graph, device):
            with pytest.raises(flashlatent.InvalidArgumentError, match="check_inputs is True.*captured"):
                flashlatent.torch.sparse_prefill(q, kv, indices, **options, check_inputs=True)
            flashlatent.torch.sparse_prefill_out(q, kv, indices, **options, **made)
        case.indices = np.ascontiguousarray(case.indices[::-1])
        again = torch.from_numpy(case.indices).to(device)
        indices.copy_(again[..., :40])
        options["extra_indices"].copy_(again[..., 40:])
        graph.replay()
        check(case, *made.values())


@pytest.mark.parametrize("device", DEVICES)
def test_out_of_any_stride(device):
    case = Prefill(s_q=4, heads=3)
    q, kv, indices, options = tensors(case, device)
    larger = torch.full((4, 5, 520), 7.0, dtype=q.dtype, device=device)
    made = {"out": larger[:, 1:4, 8:], "max_logits": torch.empty(3, 4, device=device).T,
            "lse": torch.empty(3, 4, device=device).T}
    flashlatent.sparse_prefill(q, kv, indices, softmax_scale=case.scale, **options, **made)
    check(case, *made.values())
    assert (larger[:, 0] == 7).all() and (larger[:, 4] == 7).all() and (larger[..., :8] == 7).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("s_q, s_kv, topk", [(0, 100, 5), (3, 0, 5), (3, 100, 0), (0, 0, 0)])
def test_nothing(s_q, s_kv, topk, device):
    q = torch.zeros(s_q, 6, 576, dtype=torch.bfloat16, device=device)
    kv = torch.full((s_kv, 1, 576), math.nan, dtype=torch.bfloat16, device=device)
    indices = torch.full((s_q, 1, topk), 7 if s_kv == 0 else -1, dtype=torch.int32, device=device)
    out, max_logits, lse = flashlatent.torch.sparse_prefill(q, kv, indices, softmax_scale=1.0)
    assert out.shape == (s_q, 6, 512) and (out == 0).all()
    assert max_logits.shape == lse.shape == (s_q, 6) and (max_logits == -math.inf).all() and (lse == -math.inf).all()


def test_fakes_have_shapes_and_refuse():
    with torch._subclasses.FakeTensorMode():
        q, kv, indices = torch.empty(3, 6, 576, dtype=torch.float16), torch.empty(9, 1, 576), torch.empty(3, 1, 5)
        out, *others = flashlatent.torch.sparse_prefill(q, kv, indices, softmax_scale=1.0, v_dim=256)
        assert (out.shape, out.dtype) == ((3, 6, 256), torch.float16)
        assert all((x.shape, x.dtype) == ((3, 6), torch.float32) for x in others)
        with pytest.raises(flashlatent.InvalidArgumentError, match="q has 2 dimensions; .s_q, h_q, d. is expected"):
            flashlatent.torch.sparse_prefill(q[0], kv, indices, softmax_scale=1.0)


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
        if given == "out" and torch.__version__.startswith("2.4."):
            pytest.skip("torch 2.4 cannot trace out=")
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
