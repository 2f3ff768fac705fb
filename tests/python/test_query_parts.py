"""A query in two parts: the bits of one array, in every call that takes a latent cache."""

import numpy as np
import pytest

import flashlatent
from oracle import Case

SCALE = 192**-0.5


def parts(q):
    """As engines have them: heads outermost, and a slice of wider rows."""
    first, heads = q.shape[-1] - 64, q.ndim - 2
    by_head = np.moveaxis(np.ascontiguousarray(np.moveaxis(q[..., :first], heads, 0)), 0, heads)
    wide = np.zeros((*q.shape[:-1], 192), q.dtype)
    wide[..., 128:] = q[..., first:]
    return by_head, wide[..., 128:]


def same(one, two):
    for a, b in zip(one, two):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("d, v_dim", [(576, 512), (320, 256)])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_dense(d, v_dim, dtype):
    case = Case([0, 1, 130], d=d, v_dim=v_dim, tokens=2, dtype=dtype)
    q, *arrays = case.arguments()
    options = {"softmax_scale": case.scale, "v_dim": v_dim, "causal": True, "dtype": "bf16" if dtype == "bf16" else None}
    one = flashlatent.decode(q, *arrays, **options)
    first, rope = parts(q)
    assert not first.flags.c_contiguous and first.shape[-1] == v_dim
    same(one, flashlatent.decode(first, *arrays, q_rope=rope, **options))
    step = flashlatent.Step()
    same(one, step.decode(first, *arrays, q_rope=rope, **options))
    problem = flashlatent.Problem.of_arrays(first, *arrays[:2], q_rope=rope, **options)
    assert problem == flashlatent.Problem.of_arrays(q, *arrays[:2], **options)
    plan = flashlatent.Plan.like(problem, q)
    plan.schedule(arrays[2])
    same(one, plan.decode(first, *arrays, q_rope=rope))
    same(one, plan.decode(q, *arrays))


def test_ragged():
    case = Case([3, 70], d=576, v_dim=512, tokens=3, dtype="fp16")
    q, *arrays = case.arguments()
    q = q.reshape(6, *q.shape[2:])
    options = {"softmax_scale": SCALE, "causal": True, "cu_seqlens_q": np.array([0, 2, 6], np.int32)}
    first, rope = parts(q)
    same(flashlatent.decode(q, *arrays, **options), flashlatent.decode(first, *arrays, q_rope=rope, **options))


def test_e4m3():
    generator = np.random.default_rng(1)
    q = generator.integers(0, 0x78, (2, 1, 8, 576), dtype=np.uint8)
    cache = generator.integers(0, 0x38, (9, 16, 1, 576), dtype=np.uint8)
    table, lengths = np.arange(8, dtype=np.int32).reshape(2, 4), np.array([5, 60], np.int32)
    scales = {"kv_scale": np.full(1, 0.1, np.float32), "q_scale": np.linspace(0.1, 0.2, 8, dtype=np.float32)}
    first, rope = parts(q)
    same(flashlatent.decode(q, cache, table, lengths, softmax_scale=SCALE, **scales),
         flashlatent.decode(first, cache, table, lengths, q_rope=rope, softmax_scale=SCALE, **scales))


def test_sparse():
    generator = np.random.default_rng(2)
    q = generator.standard_normal((4, 8, 576)).astype(np.float16)
    kv = generator.standard_normal((50, 1, 576)).astype(np.float16)
    indices = generator.integers(-1, 50, (4, 1, 20), dtype=np.int32)
    first, rope = parts(q)
    same(flashlatent.sparse_prefill(q, kv, indices, softmax_scale=SCALE),
         flashlatent.sparse_prefill(first, kv, indices, q_rope=rope, softmax_scale=SCALE))
    cache = kv[:, None]
    same(flashlatent.decode(q[:, None], cache, indices=indices, softmax_scale=SCALE),
         flashlatent.decode(first[:, None], cache, indices=indices, q_rope=rope[:, None], softmax_scale=SCALE))


@pytest.mark.parametrize("change, message", [
    (lambda q, r: (q, r[:, :, :7]), r"q is fp16 \(2, 1, 8, 512\).* and q_rope is fp16 \(2, 1, 7, 64\).*; beside q_rope"),
    (lambda q, r: (q, r[..., :32]), r"q is .* and q_rope is fp16 \(2, 1, 8, 32\).*last 64 columns"),
    (lambda q, r: (q, r.astype(np.float32)), r"q_rope is fp32 \(2, 1, 8, 64\).* both are of the same dtype"),
    (lambda q, r: (np.concatenate([q, r], -1), r), r"q is fp16 \(2, 1, 8, 576\).* and q_rope is .*first 512"),
    (lambda q, r: (q[..., :448], r), r"q is fp16 \(2, 1, 8, 448\).* and q_rope is"),
    (lambda q, r: (q, np.repeat(r, 2, -1)[..., ::2]), "q_rope is .*innermost stride must be 1"),
])
def test_refusals(change, message):
    case = Case([5, 70], d=576, v_dim=512, dtype="fp16", heads=8)
    q, *arrays = case.arguments()
    first, rope = change(*parts(q))
    with pytest.raises(flashlatent.InvalidArgumentError, match=message):
        flashlatent.decode(first, *arrays, q_rope=rope, softmax_scale=SCALE)


def test_other_caches_have_no_parts():
    case = Case([5, 70], d=512, v_dim=512, dtype="fp16", heads=8)
    q, *arrays = case.arguments()
    rope = np.zeros((*q.shape[:-1], 64), np.float16)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"q_rope is .*but kv_cache is .*576 elements"):
        flashlatent.decode(q, *arrays, q_rope=rope, softmax_scale=SCALE)
    with pytest.raises(flashlatent.ArgumentTypeError, match="q_rope is no argument of decode_kv"):
        flashlatent.decode_kv(q, arrays[0], arrays[0], *arrays[1:], q_rope=rope, softmax_scale=SCALE)


def test_torch_operators():
    torch = pytest.importorskip("torch")
    import flashlatent.torch
    case = Case([5, 70], d=576, v_dim=512, tokens=2, dtype="fp16", heads=8)
    q, *arrays = (torch.from_numpy(array) for array in case.arguments())
    rows = q.flatten(0, 1)
    first = rows[..., :512].transpose(0, 1).contiguous().transpose(0, 1).unflatten(0, q.shape[:2])
    rope = q[..., 512:]
    one = flashlatent.torch.decode(q, *arrays, softmax_scale=SCALE, causal=True)
    plan = flashlatent.torch.plan(first, *arrays, q_rope=rope, causal=True)
    of_one = flashlatent.torch.plan(q, *arrays, causal=True)
    assert plan.shape == of_one.shape  # a plan's memory is not all written: its bytes are not compared
    options = {"q_rope": rope, "softmax_scale": SCALE, "causal": True, "plan": plan}
    for made in (plan, of_one):
        for a, b in zip(one, flashlatent.torch.decode(first, *arrays, **options | {"plan": made})):
            assert torch.equal(a, b)
    torch.library.opcheck(torch.ops.flashlatent.decode, (first, *arrays), options,
                          test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(torch.ops.flashlatent.plan, (first, *arrays), {"q_rope": rope, "causal": True},
                          test_utils=("test_schema", "test_faketensor"))
    kv = torch.randn(50, 1, 576).half()
    indices = torch.randint(-1, 50, (4, 1, 20), dtype=torch.int32)
    whole = flashlatent.torch.sparse_prefill(rows, kv, indices, softmax_scale=SCALE)
    apart = flashlatent.torch.sparse_prefill(rows[..., :512], kv, indices, q_rope=rows[..., 512:], softmax_scale=SCALE)
    for a, b in zip(whole, apart):
        assert torch.equal(a, b)
