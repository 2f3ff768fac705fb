"""Which batches of query tokens are uniform. vLLM is not needed."""

import importlib

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def queries():
    return importlib.import_module("flashlatent.vllm._queries").Queries


@pytest.mark.parametrize("lengths, rows, uniform", [
    ([1, 1, 1], 3, True), ([4, 4], 8, True), ([4, 4, 0], 12, True), ([1, 0, 0], 3, True), ([0, 0], 2, True),
    ([2, 1], 3, False),
    ([2, 1], 4, False),  # padded to as many rows as a uniform batch has
    ([1, 2, 0], 6, False), ([4, 0, 4], 12, False), ([3, 1, 2], 9, False), ([4, 4, 0], 8, False)])
def test_uniform(queries, lengths, rows, uniform):
    starts = torch.tensor([0] + lengths).cumsum(0).int()
    found = queries.of(starts, starts, rows)
    assert found.uniform is uniform
    assert (found.requests, found.tokens, found.total) == (len(lengths), max(lengths + [1]), sum(lengths))


@pytest.mark.parametrize("lengths, rows", [([1, 1], 2), ([3, 3, 0], 9), ([3, 1], 6)])
def test_queries_in_two_parts(queries, lengths, rows):
    import flashlatent
    starts = torch.tensor([0] + lengths).cumsum(0).int()
    found = queries.of(starts, starts, rows)
    q, cache = torch.randn(rows, 8, 576).half(), torch.randn(8, 16, 1, 576).half()
    by_head = q[..., :512].transpose(0, 1).contiguous().transpose(0, 1)
    context = torch.tensor([20 if n else 0 for n in lengths], dtype=torch.int32)
    arguments = (cache, torch.arange(2 * len(lengths)).int().view(-1, 2), context)
    options = dict(want_lse=True, v_dim=512, softmax_scale=192**-0.5)
    whole = found.attend(flashlatent.Step(), q, *arguments, **options)
    parts = found.attend(flashlatent.Step(), by_head, *arguments, q_rope=q[..., 512:], **options)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts))
