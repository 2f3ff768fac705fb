"""prepare_step() on every device, in CUDA graphs too: what it makes of NumPy's arrays."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashlatent
from flashlatent import StepCache
from test_prepare_step import LENGTHS, caches_of, check
from test_torch import DEVICES, capture

pytestmark = pytest.mark.parametrize("device", DEVICES)


def on(device, caches):
    return [StepCache(torch.from_numpy(cache.block_table).to(device), *cache[1:]) for cache in caches]


def to_host(tokens):
    def array(tensor):
        return None if tensor is None else tensor.cpu().numpy()

    return flashlatent.StepTokens(array(tokens.positions),
                                  tuple(flashlatent.CacheTokens(*map(array, cache)) for cache in tokens.caches))


@pytest.mark.parametrize("query_tokens", [1, 3])
@pytest.mark.parametrize("repeats", [1, 40])
def test_uniform(device, query_tokens, repeats):
    lengths = np.tile(LENGTHS, repeats)
    caches = caches_of(np.random.default_rng(1), len(lengths))
    tokens = flashlatent.prepare_step(torch.from_numpy(lengths).to(device), on(device, caches), query_tokens=query_tokens)
    assert tokens.positions.device == tokens.caches[0].slots.device == torch.device(device)
    check(to_host(tokens), lengths, np.arange(len(lengths) + 1) * query_tokens, caches)


def test_ragged(device):
    random = np.random.default_rng(2)
    caches = caches_of(random, len(LENGTHS))
    begins = np.concatenate([[0], np.cumsum(random.integers(0, 4, len(LENGTHS)))]).astype(np.int32)
    tokens = flashlatent.prepare_step(torch.from_numpy(LENGTHS).to(device), on(device, caches),
                                      cu_seqlens_q=torch.from_numpy(begins).to(device), total_tokens=int(begins[-1]))
    check(to_host(tokens), LENGTHS, begins, caches)


def test_replays_follow_lengths(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    caches = caches_of(np.random.default_rng(4), len(LENGTHS))
    with torch.cuda.device(device):
        lengths, tables = torch.from_numpy(LENGTHS).to(device), on(device, caches)
        flashlatent.prepare_step(lengths, tables, query_tokens=2)
        graph = torch.cuda.CUDAGraph()
        with capture(graph, device):
            tokens = flashlatent.prepare_step(lengths, tables, query_tokens=2)
        for more in (0, 1, 130):
            lengths.copy_(torch.from_numpy(LENGTHS + more))
            graph.replay()
            check(to_host(tokens), LENGTHS + more, np.arange(len(LENGTHS) + 1) * 2, caches)


def test_a_step_that_a_graph_replays(device):
    """The plan that prepare() captures follows the lengths, and the first decode() makes no other."""
    torch.manual_seed(7)
    q = torch.randn(2, 1, 8, 576).to(torch.bfloat16).to(device)
    cache = torch.randn(9, 64, 1, 576).to(torch.bfloat16).to(device)
    table = torch.arange(1, 9, dtype=torch.int32).reshape(2, 4).to(device)
    lengths = torch.tensor([200, 3], dtype=torch.int32, device=device)
    problem = flashlatent.Problem.of_arrays(q, cache, table, softmax_scale=0.05)

    def layer():
        step = flashlatent.Step()
        step.prepare(lengths, [StepCache(table)], plans=[(problem,)])
        return step, step.decode(q, cache, table, lengths, softmax_scale=0.05)

    step, (out, lse) = layer()
    expected = flashlatent.decode(q, cache, table, lengths, softmax_scale=0.05)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
    if device == "cpu":
        return
    with torch.cuda.device(device):
        graph = torch.cuda.CUDAGraph()
        with capture(graph, device):
            step, (out, lse) = layer()
        for both in ([200, 3], [1, 256], [0, 64]):
            lengths.copy_(torch.tensor(both, dtype=torch.int32))
            graph.replay()
            expected = flashlatent.decode(q, cache, table, lengths, softmax_scale=0.05)
            torch.testing.assert_close(out, expected[0], atol=2e-3, rtol=2e-2)
            torch.testing.assert_close(lse, expected[1], atol=1e-4, rtol=1e-4)
