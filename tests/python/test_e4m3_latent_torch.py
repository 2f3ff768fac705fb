"""e4m3 latent caches through torch: the operators, and the drop-in for vLLM's fork of flash_mla."""
import math

import pytest

torch = pytest.importorskip("torch")

import flashlatent
import flashlatent.torch
from flashlatent import flash_mla

E4M3 = torch.float8_e4m3fn
SCALE = 192**-0.5


def case(tokens=2):
    torch.manual_seed(0)
    plain = torch.randn(8, 16, 1, 576).bfloat16()
    kv_scale = torch.tensor([0.013])
    cache = flashlatent.torch.convert_cache(plain, E4M3, new_kv_scale=kv_scale)
    assert cache.dtype == E4M3 and cache.shape == plain.shape
    q = torch.randn(3, tokens, 8, 576).bfloat16()
    q_scale = torch.tensor([0.02])
    table = torch.tensor([[0, 1, 2, 3], [4, 5, -1, -1], [7, 6, 0, 0]], dtype=torch.int32)
    lengths = torch.tensor([60, 0, 33], dtype=torch.int32)
    return q, (q.float() / q_scale).to(E4M3), q_scale, cache, kv_scale, table, lengths


def expected(q, cache, kv_scale, table, lengths):
    rows = (cache.float() * kv_scale).reshape(-1, 576).double()
    out = torch.zeros(*q.shape[:3], 512, dtype=torch.float64)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), math.inf, dtype=torch.float64)
    for i, length in enumerate(lengths.tolist()):
        for t in range(q.shape[1]):
            seen = length - q.shape[1] + t + 1
            if seen > 0:
                slots = [int(table[i, n // 16]) * 16 + n % 16 for n in range(seen)]
                scores = q[i, t].double() @ rows[slots].T * SCALE
                out[i, t], lse[i, :, t] = scores.softmax(-1) @ rows[slots][:, :512], scores.logsumexp(-1)
    return out, lse


def check(got, wanted):
    assert got[0].dtype == torch.bfloat16
    error = (got[0].double() - wanted[0]).norm(dim=-1)
    assert (error <= 2**-4 * wanted[0].norm(dim=-1) + 1e-6).all()
    torch.testing.assert_close(got[1].double(), wanted[1], rtol=1e-5, atol=1e-4)


def test_operators():
    q, codes, q_scale, cache, kv_scale, table, lengths = case()
    wanted = expected(codes.float() * q_scale, cache, kv_scale, table, lengths)
    plan = flashlatent.torch.plan(codes, cache, table, lengths, causal=True)
    out, lse = flashlatent.torch.decode(codes, cache, table, lengths, softmax_scale=SCALE, causal=True, plan=plan,
                                        kv_scale=kv_scale, q_scale=q_scale)
    check((out, lse.masked_fill(lse == -math.inf, math.inf)), wanted)
    for operator, options in ((torch.ops.flashlatent.decode, {"softmax_scale": SCALE, "kv_scale": kv_scale}),
                              (torch.ops.flashlatent.plan, {})):
        # As bytes: torch's own check does not compute in float8.
        for queries, more in ((codes.view(torch.uint8), {"products": "auto"}), (q, {"products": "fp8"}), (q, {})):
            torch.library.opcheck(operator, (queries, cache.view(torch.uint8), table, lengths), {**options, **more},
                                  test_utils=("test_schema", "test_faketensor"))


def test_cache_operators():
    _, _, _, cache, kv_scale, table, _ = case()
    plain = flashlatent.torch.convert_cache(cache, torch.bfloat16, kv_scale)
    torch.testing.assert_close(plain, (cache.float() * kv_scale).bfloat16(), rtol=0, atol=0)
    begins = torch.tensor([0, 20], dtype=torch.int32)
    rows = flashlatent.torch.gather_cache(cache, table[:1], begins, 20, dtype=torch.bfloat16, kv_scale=kv_scale)
    torch.testing.assert_close(rows[:, 0], plain[:2, :, 0].reshape(32, 576)[:20], rtol=0, atol=0)
    copied = flashlatent.torch.gather_cache(cache, table[:1], begins, 20)
    assert copied.dtype == E4M3 and torch.equal(copied.view(torch.uint8)[:16, 0], cache.view(torch.uint8)[0, :, 0])
    written = torch.zeros_like(cache.view(torch.uint8)).view(E4M3)
    flashlatent.torch.append_latent(plain[0, :, 0, :512], plain[0, :, 0, 512:], torch.arange(16), written, kv_scale)
    assert torch.equal(written.view(torch.uint8)[0], cache.view(torch.uint8)[0])


@pytest.mark.parametrize("compiled", [False, True])
def test_drop_in(compiled):
    q, codes, q_scale, cache, kv_scale, table, lengths = case()
    wanted = expected(codes.float() * q_scale, cache, kv_scale, table, lengths)
    metadata, num_splits = flash_mla.get_mla_metadata_dense_fp8(lengths, 16, 1)

    def call(*tensors):
        return flash_mla.flash_mla_with_kvcache_fp8(*tensors, 512, metadata, num_splits, softmax_scale=SCALE, causal=True,
                                                    descale_q=q_scale, descale_k=kv_scale)

    if compiled:
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    check(call(codes, cache, table, lengths), wanted)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"descale_k is fp32 \(2\)"):
        flash_mla.flash_mla_with_kvcache_fp8(codes, cache, table, lengths, 512, metadata, descale_k=torch.ones(2))
    for other in (torch.zeros(8, 16, 1, 576).bfloat16(), torch.zeros(8, 16, 1, 656, dtype=torch.uint8)):
        with pytest.raises(flashlatent.InvalidArgumentError, match="k_cache is .*; expected float8_e4m3fn or uint8"):
            flash_mla.flash_mla_with_kvcache_fp8(q, other, table, lengths, 512, metadata)
