"""The option check_inputs with torch's tensors, operators and the drop-in, on every device there is."""

import pytest

torch = pytest.importorskip("torch")

import flashlatent
import flashlatent.torch
from flashlatent import flash_mla
from test_torch import DEVICES, TorchCase, capture

pytestmark = pytest.mark.parametrize("device", DEVICES)
BEYOND = "cache_seqlens\\[1\\] is 1000; request 1 may have 0 to"


def too_long(device):
    """A case with a length beyond its page table's reach, and how it is decoded."""
    case = TorchCase([20, 3], device, page_size=16)
    case.tensors[3][1] = 1000
    return case


def refused(call, *arguments, **options):
    with pytest.raises(flashlatent.InvalidArgumentError, match=BEYOND):
        call(*arguments, **options)


def test_one_call(device):
    case = too_long(device)
    refused(flashlatent.decode, *case.tensors, **case.options(), check_inputs=True)
    flashlatent.decode(*case.tensors, **case.options(), check_inputs=False)
    if device == "cpu":
        refused(flashlatent.decode, *case.tensors, **case.options())
    else:
        flashlatent.decode(*case.tensors, **case.options())  # would have to wait
    case.tensors[3][1] = 3
    case.check(*flashlatent.decode(*case.tensors, **case.options(), check_inputs=True))


def test_step_and_plan(device):
    case = too_long(device)
    step = flashlatent.Step()
    step.decode(*case.tensors, **case.options())
    refused(step.decode, *case.tensors, **case.options(), check_inputs=True)
    problem = flashlatent.Problem.of_arrays(*case.tensors[:3], **case.options())
    plan = flashlatent.Plan.like(problem, case.tensors[0])
    plan.schedule(case.tensors[3])
    plan.decode(*case.tensors)
    refused(plan.decode, *case.tensors, check_inputs=True)


def test_capture(device):
    if device == "cpu":
        pytest.skip("graphs are CUDA's")
    case = TorchCase([20, 3], device, page_size=16)
    step = flashlatent.Step()
    out, lse = step.decode(*case.tensors, **case.options(), check_inputs=True)
    graph = torch.cuda.CUDAGraph()
    with capture(graph, device):
        with pytest.raises(flashlatent.InvalidArgumentError, match="check_inputs is True.*captured"):
            step.decode(*case.tensors, **case.options(), out=out, lse=lse, check_inputs=True)
        step.decode(*case.tensors, **case.options(), out=out, lse=lse)
    graph.replay()
    case.check(out, lse)


def test_operators(device):
    case = too_long(device)
    q, kv_cache, block_table, cache_seqlens = case.tensors
    flashlatent.torch.decode(*case.tensors, **case.options())
    refused(flashlatent.torch.decode, *case.tensors, **case.options(), check_inputs=True)
    out, lse = q.new_empty(*q.shape[:-1], 256), q.new_empty(2, q.shape[2], 1, dtype=torch.float32)
    refused(flashlatent.torch.decode_out, *case.tensors, **case.options(), out=out, lse=lse, check_inputs=True)
    cache = kv_cache[..., :256].contiguous()
    arguments = q[..., :256].contiguous(), cache, cache, block_table, cache_seqlens
    flashlatent.torch.decode_kv(*arguments, softmax_scale=0.1)
    refused(flashlatent.torch.decode_kv, *arguments, softmax_scale=0.1, check_inputs=True)


def test_compiled(device):
    case = too_long(device)

    def layer(q, kv_cache, block_table, cache_seqlens):
        return flashlatent.torch.decode(q, kv_cache, block_table, cache_seqlens, **case.options(), check_inputs=True)

    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    refused(compiled, *case.tensors)
    case.tensors[3][1] = 3
    case.check(*compiled(*case.tensors))


def test_drop_in(device):
    case = too_long(device)
    q, k_cache, block_table, cache_seqlens = case.tensors

    def call(**options):
        return flash_mla.flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, 256,
                                                *flash_mla.get_mla_metadata(), **options)

    call()
    refused(call, check_inputs=True)
    cache_seqlens[1] = 3
    case.check(*call(check_inputs=True))
