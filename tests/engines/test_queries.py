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
