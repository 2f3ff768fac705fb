"""torch tensors and operators, on every device there is."""

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashlatent
import flashlatent.torch
from oracle import Case

DEVICES = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())
                     if flashlatent.info()["backends"]["cuda"]["available"]]
pytestmark = pytest.mark.parametrize("device", DEVICES)


def capture(graph, device):
    """torch's own stream for capturing is on the device that it was first used on."""
    return torch.cuda.graph(graph, stream=torch.cuda.Stream(device))


class TorchCase(Case):
    """A case whose arrays are tensors; on a GPU of dimensions that its kernels take."""

    def __init__(self, lengths, device, **options):
        options.setdefault("d", 320)
        super().__init__(lengths, v_dim=256, **options)
        self.device = device
        self.tensors = [torch.from_numpy(array) for array in Case.arguments(self)]
        if self.dtype == "bf16":
            self.tensors[:2] = [tensor.view(torch.bfloat16) for tensor in self.tensors[:2]]
        self.tensors = [tensor.to(device) for tensor in self.tensors]

    def options(self):
        return {"softmax_scale": self.scale, "v_dim": self.v_dim}

    def check(self, out, lse, **options):
        assert out.device == lse.device == torch.device(self.device) and lse.dtype == torch.float32
        super().check(out.float().cpu(), lse.cpu(), **options)

    def set_lengths(self, lengths):
        self.cache_seqlens[:] = lengths
        self.tensors[3].copy_(torch.tensor(lengths, dtype=torch.int32))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_native_call(device, dtype):
    case = TorchCase([0, 1, 130], device, dtype=dtype, tokens=2)
    out, lse = flashlatent.decode(*case.tensors, causal=True, **case.options())
    assert out.dtype == case.tensors[0].dtype
    case.check(out, lse, causal=True)


def test_new_tensors(device):
    case = TorchCase([5, 90], device)
    step = flashlatent.Step()
    with torch.inference_mode():
        out, lse = step.decode(*case.tensors, **case.options())
        assert out.is_inference() and out.is_contiguous() and lse.is_contiguous()
    case.check(out, lse)
    q = torch.nn.Parameter(case.tensors[0], requires_grad=False)
    out, lse = step.decode(q, *case.tensors[1:], **case.options())
    assert type(out) is torch.Tensor and not out.is_inference() and not out.requires_grad
    case.check(out, lse)
    out, lse = step.decode(*(tensor if i == 1 else tensor[:0] for i, tensor in enumerate(case.tensors)), **case.options())
    assert out.shape == (0, 1, 4, 256) and lse.shape == (0, 4, 1)


@pytest.mark.parametrize("planned", [False, True])
def test_operator(device, planned):
    case = TorchCase([5, 90], device, dtype="bf16")
    plan = flashlatent.torch.plan(*case.tensors, v_dim=256) if planned else None
    case.check(*flashlatent.torch.decode(*case.tensors, plan=plan, **case.options()))
    out, lse = torch.empty(2, 1, 4, 256, dtype=torch.bfloat16, device=device), torch.empty(2, 4, 1, device=device)
    flashlatent.torch.decode_out(*case.tensors, plan=plan, out=out, lse=lse, **case.options())
    case.check(out, lse)


@pytest.mark.parametrize("typical_tokens", [1, 64, 1 << 20])
def test_typical_tokens(device, typical_tokens):
    case = TorchCase([5, 90, 1500], device, dtype="bf16")
    hint = dict(typical_tokens=typical_tokens)
    plan = flashlatent.torch.plan(*case.tensors, v_dim=256, **hint)
    case.check(*flashlatent.torch.decode(*case.tensors, plan=plan, **hint, **case.options()))
    case.check(*flashlatent.torch.decode(*case.tensors, **hint, **case.options()))
    case.check(*flashlatent.decode(*case.tensors, **hint, **case.options()))
    step = flashlatent.Step()
    for tokens in (0, typical_tokens, 0):  # plans of their own
        case.check(*step.decode(*case.tensors, typical_tokens=tokens, **case.options()))


def test_sink_and_ragged_queries(device):
    case = TorchCase([30, 7], device, tokens=2)
    sink = torch.tensor([-1.0, 0.0, 2.0, 1.0], device=device)
    q, *others = case.tensors
    begins = torch.tensor([0, 2, 4], dtype=torch.int32, device=device)
    out, lse = flashlatent.torch.decode(q.flatten(0, 1), *others, cu_seqlens_q=begins, tokens=2, attn_sink=sink,
                                        **case.options())
    case.check(out.unflatten(0, (2, 2)), lse, sink=sink.cpu().numpy())


@pytest.mark.parametrize("name", ["plan", "decode", "combine"])
def test_fake_tensors(device, name):
    case = TorchCase([5, 90], device)
    if name == "combine":
        arguments, options = (torch.rand(3, 2, 1, 4, 8, device=device), torch.rand(3, 2, 4, 1, device=device)), {}
    else:
        arguments, options = tuple(case.tensors), {"v_dim": 256}
        if name == "decode":
            options["softmax_scale"] = 0.1
    operator = getattr(torch.ops.flashlatent, name).default
    # A plan's bytes are not all written, and so not equal from call to call.
    compare = () if name == "plan" else ("test_aot_dispatch_dynamic",)
    torch.library.opcheck(operator, arguments, options, test_utils=("test_schema", "test_faketensor", *compare))


def test_gradients(device):
    """No operator has a backward: grad mode with an input that requires a gradient is refused, in traces too."""
    case = TorchCase([5, 90], device)
    q, *others = case.tensors
    query, options = q.clone().requires_grad_(), case.options()
    sink = torch.zeros(q.shape[2], device=device, requires_grad=True)
    wanted = "requires a gradient, and flashlatent::decode has no backward; a detached tensor, or a call in torch.no_grad"
    decode = functools.partial(flashlatent.torch.decode, **options)
    expected = decode(q, *others)
    for name, refused in [("q", lambda: decode(query * 1, *others)), ("attn_sink", lambda: decode(q, *others, attn_sink=sink)),
                          ("q", lambda: torch.ops.flashlatent.decode(query, *others, **options))]:
        with pytest.raises(flashlatent.InvalidArgumentError, match=f"{name} {wanted}"):
            refused()
    half = torch.zeros(1, q.shape[-1], device=device, dtype=q.dtype, requires_grad=True)
    with pytest.raises(flashlatent.InvalidArgumentError, match="latent requires a gradient, and flashlatent::append_latent"):
        flashlatent.torch.append_latent(half, None, torch.zeros(1, dtype=torch.int32, device=device), others[0])
    table = torch.zeros(512, 64, device=device, requires_grad=True)
    positions = torch.zeros(q.shape[:2], device=device, dtype=torch.int32)
    with pytest.raises(flashlatent.InvalidArgumentError, match="q_rotate requires a gradient"):
        decode(q, *others, q_rotate=(positions, table))

    plan = flashlatent.torch.plan(query, *others, v_dim=options["v_dim"])  # of shapes and lengths
    for given in (query.detach(), query):
        with torch.set_grad_enabled(given is not query):
            assert all(map(torch.equal, decode(given, *others, plan=plan), expected))
    with torch.inference_mode():
        assert all(map(torch.equal, decode(query * 1, *others), expected))

    torch.compiler.reset()
    layer = torch.compile(lambda q, *others: decode(q * 1, *others), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=f"q {wanted}"):
        layer(query, *others)
    with torch.no_grad():
        assert all(map(torch.equal, layer(query, *others), expected))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(device, dynamic):
    def layer(q, kv_cache, block_table, cache_seqlens):
        plan = flashlatent.torch.plan(q * 1, kv_cache, block_table, cache_seqlens, v_dim=256)
        out, lse = flashlatent.torch.decode(q * 1, kv_cache, block_table, cache_seqlens, softmax_scale=case.scale,
                                            v_dim=256, plan=plan)
        return out + 0, lse

    torch.compiler.reset()  # all parameters compile one code object, and so many versions it may not have
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    # A plan's size is not known where shapes are not; newer torch takes that by default.
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for lengths in ([3, 70], [64, 1, 20]):
            case = TorchCase(lengths, device)
            case.check(*compiled(*case.tensors))


def test_cuda_graph(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    case = TorchCase([40, 200, 3], device)
    with torch.cuda.device(device):
        run = lambda: flashlatent.torch.decode(
            *case.tensors, plan=flashlatent.torch.plan(*case.tensors, v_dim=256), **case.options())
        run()
        graph = torch.cuda.CUDAGraph()
        with capture(graph, device):
            out, lse = run()
        for lengths in ([40, 200, 3], [1, 7, 0]):
            case.set_lengths(lengths)
            graph.replay()
            case.check(out, lse)


def test_another_stream(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    case = TorchCase([40, 200], device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        results = flashlatent.decode(*case.tensors, **case.options())
    stream.synchronize()
    case.check(*results)
    results = flashlatent.decode(*case.tensors, stream=stream, **case.options())
    stream.synchronize()
    case.check(*results)


def test_threads(device):
    from concurrent.futures import ThreadPoolExecutor
    cases = [TorchCase([5 + seed, 300], device, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda case: flashlatent.torch.decode(*case.tensors, **case.options()), cases))
    for case, result in zip(cases, results):
        case.check(*result)


def test_combine(device):
    partial_out = torch.randn(2, 1, 1, 2, 64, device=device)
    partial_lse = torch.tensor([0.0, 1.0], device=device).reshape(2, 1, 1, 1).expand(2, 1, 2, 1)
    out, lse = flashlatent.torch.combine(partial_out, partial_lse, dtype=torch.bfloat16)
    weights = torch.softmax(torch.tensor([0.0, 1.0], device=device), 0).reshape(2, 1, 1, 1, 1)
    torch.testing.assert_close(out.float(), (weights * partial_out).sum(0), rtol=2**-8, atol=2**-8)
    np.testing.assert_allclose(lse.cpu(), np.full((1, 2, 1), np.log(1 + np.e)), rtol=1e-6)


def test_cache_operators(device):
    latent, rope = (torch.randn(6, d, device=device).bfloat16() for d in (512, 64))
    slots = torch.tensor([3, 17, -1, 0, 1, 30], device=device)
    table = torch.tensor([[1, 0]], dtype=torch.int32, device=device)
    begins = torch.tensor([0, 32], dtype=torch.int32, device=device)
    pairs = torch.tensor([[0, 0], [1, 1]], device=device)

    def fill(latent, rope):
        kv_cache = torch.zeros(2, 16, 1, 576, dtype=torch.bfloat16, device=device)
        flashlatent.torch.append_latent(latent, rope, slots, kv_cache)
        quantised = flashlatent.torch.convert_cache(kv_cache, torch.uint8)
        copied = torch.zeros_like(quantised)
        flashlatent.torch.copy_pages(quantised, copied, pairs)
        return kv_cache, flashlatent.torch.gather_cache(copied, table, begins, 32, dtype=torch.bfloat16)

    torch.compiler.reset()  # all parameters compile one code object, and so many versions it may not have
    for call in (fill, torch.compile(fill, fullgraph=True, backend="aot_eager")):
        kv_cache, rows = call(latent, rope)
        tokens = torch.cat([latent, rope], -1)
        kept = slots >= 0
        assert (kv_cache.reshape(32, 576)[slots[kept]] == tokens[kept]).all()
        expected = kv_cache.flip(0).reshape(32, 576)
        assert (rows[:, 0, 512:] == expected[:, 512:]).all()
        # e4m3: half a unit in the last of three bits.
        torch.testing.assert_close(rows[:, 0].float(), expected.float(), rtol=2**-4, atol=2**-8)
