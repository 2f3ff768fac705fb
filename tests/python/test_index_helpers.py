"""Helpers that turn positions into places of a cache: negative, far and empty values name no token of anybody's."""

import itertools

import numpy as np
import pytest

import flashlatent

torch = pytest.importorskip("torch")
from flashlatent._slots import in_pages  # noqa: E402
from flashlatent.distributed import Interleaving  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
TABLE = torch.tensor([[2, 0, 5], [7, 1, -1]], dtype=torch.int32)
SIZE = 4


def plain_slot(tokens, position, request, table):
    """The slot of a token, by the definitions in docs/distributed.md; -1 where it has none here."""
    if position < 0 or position // tokens.run % tokens.world != tokens.rank:
        return -1
    own = position // (tokens.run * tokens.world) * tokens.run + position % tokens.run
    if own // SIZE >= len(table[request]) or table[request][own // SIZE] < 0:
        return -1
    return table[request][own // SIZE] * SIZE + own % SIZE


def interleavings():
    return [Interleaving(rank, world, run) for world, run in itertools.product((1, 2, 3), (1, 4)) for rank in range(world)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", interleavings(), ids=str)
def test_slot_mapping(tokens, device):
    table = TABLE.to(device)
    most = tokens.position_of(2 * SIZE - 1)
    positions = list(range(-5, most + 1)) + [-2**31, -2**63]
    for request in (0, 1):
        requests = torch.full((len(positions),), request)
        got = tokens.slot_mapping(torch.tensor(positions, device=device), requests.to(device), table, SIZE)
        assert got.dtype == torch.int64
        assert got.tolist() == [plain_slot(tokens, p, request, TABLE.tolist()) for p in positions]
    no_page = tokens.slot_mapping(torch.tensor([tokens.position_of(2 * SIZE)], device=device),
                                  torch.tensor([1], device=device), table, SIZE)
    assert no_page.tolist() == [-1]
    # Padding may say any request; there may be nothing at all.
    strange = torch.tensor([-1, 99, -2**31], device=device)
    assert tokens.slot_mapping(torch.full((3,), -1, device=device), strange, table, SIZE).tolist() == [-1] * 3
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    for empty in (table, table[:0], table[:, :0]):
        assert tokens.slot_mapping(nothing, nothing, empty, SIZE).shape == (0,)
        assert tokens.slot_mapping(nothing - 1, nothing, empty, SIZE).shape == (0,)
    assert tokens.slot_mapping(strange * 0 - 1, strange, table[:0], SIZE).tolist() == [-1] * 3


def test_padding_overwrites_nothing():
    cache = torch.zeros(8, SIZE, 1, 576).bfloat16()
    slots = Interleaving(1, 2, 1).slot_mapping(torch.tensor([-1]), torch.tensor([0]), TABLE, SIZE)
    flashlatent.append_latent(torch.ones(1, 512).bfloat16(), torch.ones(1, 64).bfloat16(), slots, cache)
    assert not cache.any()


def test_new_tokens_without_a_place():
    tokens = Interleaving(1, 2, 1)
    cases = [([1, 25], [0, 0], r"positions\[1\] is 25, token 12 of this rank; block_table has 3 pages of 4 tokens"),
             ([1, 3], [0, 2], r"requests\[1\] is 2; rows of block_table, 0 to 1"),
             ([1, 3], [-1, 0], r"requests\[0\] is -1; rows")]
    for positions, requests, match in cases:
        with pytest.raises(flashlatent.InvalidArgumentError, match=match):
            tokens.slot_mapping(torch.tensor(positions), torch.tensor(requests), TABLE, SIZE)
    assert tokens.slot_mapping(torch.tensor([24]), torch.tensor([9]), TABLE, SIZE).tolist() == [-1]  # the other rank's


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_new_tokens_without_a_place_on_a_gpu():
    got = Interleaving(0, 1).slot_mapping(torch.tensor([12, 0, 0, 1]).cuda(), torch.tensor([0, 2, -1, 0]).cuda(),
                                          TABLE.cuda(), SIZE)
    assert got.tolist() == [-1, -1, -1, 2 * SIZE + 1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", interleavings(), ids=str)
def test_local_indices(tokens, device):
    positions = torch.tensor([[[-1, 3, 0, 5, 2147480000]], [[11, -2**31, 1, 2, 40]]], dtype=torch.int32, device=device)
    indices, counts = tokens.local_indices(positions, TABLE.to(device), SIZE)
    assert indices.dtype == counts.dtype == torch.int32
    for row, got, count in zip(range(2), indices[:, 0].tolist(), counts.tolist()):
        wanted = [plain_slot(tokens, p, row, TABLE.tolist()) for p in positions[row, 0].tolist()]
        wanted = [slot for slot in wanted if slot >= 0]
        assert got == wanted + [-1] * (5 - len(wanted)) and count == len(wanted)
    for shape, width in (((0, 1, 3), 4), ((2, 0, 3), 4), ((2, 1, 0), 4), ((2, 1, 3), 0), ((0, 0, 0), 0)):
        empty = torch.zeros(shape, dtype=torch.int32, device=device)
        table = torch.zeros((shape[0], width), dtype=torch.int32, device=device)
        indices, counts = tokens.local_indices(empty, table, SIZE)
        assert indices.shape == shape and counts.shape == shape[:1]
        assert width > 0 or (indices == -1).all() and not counts.any()


def test_slots_that_no_index_can_name():
    table = torch.tensor([[2**29, 3]], dtype=torch.int32)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"positions\[0, 0, 1\] is 2, whose slot is 2147483650"):
        Interleaving(0, 1).local_indices(torch.tensor([[[4, 2]]]), table, SIZE)


@pytest.mark.parametrize("tokens", interleavings(), ids=str)
def test_places_of_negative_numbers(tokens):
    numbers = [-2**31, -7, -1, 0, 1, 6, 2**31 - 1]
    for method in (tokens.rank_of, tokens.slot_of, tokens.position_of):
        one_by_one = [method(number) for number in numbers]
        assert one_by_one[:3] == [-1] * 3 and min(one_by_one[3:]) >= 0
        assert method(torch.tensor(numbers)).tolist() == one_by_one
    lengths = [tokens.local_lengths(number) for number in numbers]
    assert lengths[:4] == [0] * 4 and tokens.local_lengths(torch.tensor(numbers)).tolist() == lengths


@pytest.mark.parametrize("match, change", [
    ("page_size is 0; 1 to", {"page_size": 0}),
    ("page_size is True", {"page_size": True}),
    ("page_size is 2.5", {"page_size": 2.5}),
    (r"positions is torch.float32 \(2,\)", {"positions": torch.tensor([0.0, 1.0])}),
    (r"positions is torch.int64 \(1, 2\)", {"positions": torch.tensor([[0, 1]])}),
    ("positions is a list", {"positions": [0, 1]}),
    ("requests has 1 entries and positions 2", {"requests": torch.tensor([0])}),
    (r"block_table is torch.int32 \(3,\)", {"block_table": TABLE[0]}),
    ("block_table is on meta; cpu", {"block_table": TABLE.to("meta")}),
])
def test_wrong_tensors(match, change):
    arguments = {"positions": torch.tensor([0, 1]), "requests": torch.tensor([0, 1]), "block_table": TABLE,
                 "page_size": SIZE, **change}
    with pytest.raises(flashlatent.InvalidArgumentError, match=match):
        Interleaving(0, 1).slot_mapping(**arguments)


def test_rows_of_a_table_that_is_too_short():
    with pytest.raises(flashlatent.InvalidArgumentError, match="block_table has 2 rows and positions 3"):
        Interleaving(0, 1).local_indices(torch.zeros(3, 1, 1, dtype=torch.int32), TABLE, SIZE)


def test_in_pages():
    """Against one token at a time."""
    random = np.random.default_rng(5)
    for _ in range(200):
        batch, width, size = (int(random.integers(low, 5)) for low in (0, 0, 1))
        table = torch.from_numpy(random.integers(-1, 9, (batch, width)))
        tokens = torch.from_numpy(random.integers(-9, 20, (3, 4)))
        requests = torch.from_numpy(random.integers(-2, 6, (3, 1)))
        wanted = torch.from_numpy(random.integers(0, 2, (3, 4))).bool()
        got = in_pages(tokens, wanted, requests, table, size)
        for i, j in itertools.product(range(3), range(4)):
            token, request, slot = int(tokens[i, j]), int(requests[i, 0]), -1
            if wanted[i, j] and token >= 0 and 0 <= request < batch and token // size < width:
                page = int(table[request, token // size])
                slot = -1 if page < 0 else page * size + token % size
            assert got[i, j] == slot
