"""torch operators of keys and values, on every device there is."""

import pytest

torch = pytest.importorskip("torch")

import flashlatent.torch as operators
from kv_oracle import KvCase
from test_torch import DEVICES, capture

pytestmark = pytest.mark.parametrize("device", DEVICES)


class TorchKvCase(KvCase):
    """A case whose arrays are tensors."""

    def __init__(self, lengths, device, **options):
        super().__init__(lengths, **options)
        self.device = device
        self.tensors = [torch.from_numpy(array) for array in self.arrays()]
        if self.dtype == "bf16":
            self.tensors = [t.view(torch.bfloat16) if t.dtype == torch.uint16 else t for t in self.tensors]
        self.tensors = [tensor.to(device) for tensor in self.tensors]

    def check(self, out, lse, **options):
        assert out.device == lse.device == torch.device(self.device) and lse.dtype == torch.float32
        super().check(out.double().cpu().numpy(), lse.cpu().numpy(), **options)


@pytest.mark.parametrize("layout", ["separate", "packed"])
@pytest.mark.parametrize("e4m3", [False, True])
def test_operator(device, layout, e4m3):
    case = TorchKvCase([5, 90], device, dtype="bf16", layout=layout, e4m3=e4m3, tokens=2)
    options = {"causal": True, "window": 50}
    plan = operators.plan_kv(*case.tensors, **options)
    out, lse = torch.empty(2, 2, 4, 64, dtype=torch.bfloat16, device=device), torch.empty(2, 4, 2, device=device)
    operators.decode_kv_out(*case.tensors, softmax_scale=case.scale, plan=plan, out=out, lse=lse, **options)
    case.check(out, lse, **options)
    case.check(*operators.decode_kv(*case.tensors, softmax_scale=case.scale, plan=plan, **options), **options)
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.0], device=device)
    scale = torch.tensor([0.5], device=device) if e4m3 else None
    results = operators.decode_kv(*case.tensors, softmax_scale=case.scale, soft_cap=2.0, alibi_slopes=slopes,
                                  key_scale=scale, attn_sink=slopes)
    case.check(*results, soft_cap=2.0, alibi_slopes=slopes.cpu().numpy(), attn_sink=slopes.cpu().numpy(),
               key_scale=[0.5] if e4m3 else [1])


def test_ragged(device):
    case = TorchKvCase([30, 7], device, tokens=[2, 1])
    begins = torch.from_numpy(case.begins).to(device)
    case.check(*operators.decode_kv(*case.tensors, softmax_scale=case.scale, cu_seqlens_q=begins, tokens=2))


def test_e4m3_of_torch(device):
    case = TorchKvCase([30, 7], device, e4m3=True)
    case.tensors[1:3] = [cache.view(torch.float8_e4m3fn) for cache in case.tensors[1:3]]
    case.check(*operators.decode_kv(*case.tensors, softmax_scale=case.scale))


@pytest.mark.parametrize("name", ["plan_kv", "decode_kv", "gather_kv", "convert_kv"])
@pytest.mark.parametrize("layout", ["separate", "packed"])
def test_fake_tensors(device, name, layout):
    case = TorchKvCase([5, 90], device, layout=layout)
    arguments, options = case.tensors, {"softmax_scale": 0.1} if name == "decode_kv" else {}
    if name == "gather_kv":
        begins = torch.tensor([0, 5, 90], dtype=torch.int32, device=device)
        arguments = [*case.tensors[1:4], begins, 90]
    elif name == "convert_kv":
        arguments = [*(torch.nan_to_num(cache) for cache in case.tensors[1:3]), "packed", torch.bfloat16]
    operator = getattr(torch.ops.flashlatent, name).default
    # A plan's bytes are not all written, and so not equal from call to call.
    compare = () if name == "plan_kv" else ("test_aot_dispatch_dynamic",)
    torch.library.opcheck(operator, tuple(arguments), options,
                          test_utils=("test_schema", "test_faketensor", *compare))


@pytest.mark.parametrize("layout", ["separate", "packed"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(device, layout, dynamic):
    def layer(q, *others):
        plan = operators.plan_kv(q * 1, *others, causal=True)
        out, lse = operators.decode_kv(q * 1, *others, softmax_scale=case.scale, causal=True, plan=plan)
        return out + 0, lse

    torch.compiler.reset()  # all parameters compile one code object, and so many versions it may not have
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):  # as in test_torch
        for lengths in ([3, 70], [64, 1, 20]):
            case = TorchKvCase(lengths, device, layout=layout)
            case.check(*compiled(*case.tensors), causal=True)


def test_cuda_graph(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    case = TorchKvCase([40, 200, 3], device)
    with torch.cuda.device(device):
        run = lambda: operators.decode_kv(*case.tensors, softmax_scale=case.scale, plan=operators.plan_kv(*case.tensors))
        run()
        graph = torch.cuda.CUDAGraph()
        with capture(graph, device):
            out, lse = run()
        for lengths in ([40, 200, 3], [1, 7, 0]):
            case.cache_seqlens[:] = lengths
            case.tensors[4].copy_(torch.tensor(lengths, dtype=torch.int32))
            graph.replay()
            case.check(out, lse)


def test_cache_operators(device):
    keys, values = (torch.randn(6, 2, 64, device=device).bfloat16() for _ in range(2))
    slots = torch.tensor([3, 17, -1, 0, 1, 30], device=device)
    table = torch.tensor([[1, 0]], dtype=torch.int32, device=device)
    begins = torch.tensor([0, 32], dtype=torch.int32, device=device)
    pairs = torch.tensor([[0, 0], [1, 1]], device=device)
    scale = torch.tensor([0.25], device=device)

    def fill(keys, values):
        caches = [torch.zeros(2, 16, 2, 64, dtype=torch.bfloat16, device=device) for _ in range(2)]
        operators.append_kv(keys, values, slots, *caches)
        packed = operators.convert_kv(*caches, layout="packed", dtype=torch.uint8, new_key_scale=scale)
        copied = [torch.zeros_like(plane) for plane in packed]
        for plane, copy in zip(packed, copied):
            operators.copy_pages(plane, copy, pairs)
        rows = operators.gather_kv(*copied, table, begins, 32, dtype=torch.bfloat16, key_scale=scale)
        return *caches, *rows

    torch.compiler.reset()  # all parameters compile one code object, and so many versions it may not have
    for call in (fill, torch.compile(fill, fullgraph=True, backend="aot_eager")):
        *caches, gathered_keys, gathered_values = call(keys, values)
        for tokens, cache, rows in zip((keys, values), caches, (gathered_keys, gathered_values)):
            kept = slots >= 0
            assert (cache.reshape(32, 2, 64)[slots[kept]] == tokens[kept]).all()
            expected = cache.flip(0).reshape(32, 2, 64).float()
            # e4m3: half a unit in the last of three bits.
            torch.testing.assert_close(rows.float(), expected, rtol=2**-4, atol=2**-10)
