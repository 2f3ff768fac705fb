"""index_topk and its relatives: NumPy arrays and torch tensors beside a plain computation in float64."""

import numpy as np
import pytest

import flashlatent

E4M3 = np.array([np.nan if code & 0x7F == 0x7F else
                 (-1.0 if code & 0x80 else 1.0) * ((code & 7) * 2.0**-9 if code >> 3 & 15 == 0 else
                                                   (1 + (code & 7) / 8) * 2.0**((code >> 3 & 15) - 7))
                 for code in range(256)])


class Indexer:
    """Requests of random keys in pages of 16, queries of 32 heads."""

    def __init__(self, lengths=(300, 5, 0), tokens=2, topk=40, seed=0):
        random = np.random.default_rng(seed)
        self.lengths, self.tokens, self.topk = np.array(lengths, np.int32), tokens, topk
        batch, columns = len(lengths), (max(lengths) + 15) // 16 + 1
        pages = batch * columns
        self.keys = random.standard_normal((pages * 16, 128)).astype(np.float16)
        self.table = random.permutation(pages).astype(np.int32).reshape(batch, columns)
        self.cache = np.zeros((pages, 16 * 132), np.uint8)
        flashlatent.append_index_keys(self.keys, np.arange(pages * 16), self.cache, page_size=16)
        self.q = random.integers(0, 0x78, (batch, tokens, 32, 128), np.uint8)
        self.q ^= random.integers(0, 2, self.q.shape, np.uint8) << 7
        self.weights = random.standard_normal((batch, tokens, 32)).astype(np.float32)

    def arrays(self):
        return self.q, self.weights, self.cache, self.table, self.lengths

    def scores(self, request, token):
        """Of the tokens that a query token sees, causal."""
        seen = max(self.lengths[request] - self.tokens + token + 1, 0)
        places = [self.table[request, t // 16] * 16 + t % 16 for t in range(seen)]
        page, offset = np.array(places, int) // 16, np.array(places, int) % 16
        keys = np.array([E4M3[self.cache[p, o * 128:o * 128 + 128]] for p, o in zip(page, offset)]).reshape(-1, 128)
        scales = np.array([self.cache[p, 16 * 128 + o * 4:16 * 128 + o * 4 + 4].view(np.float32)[0]
                           for p, o in zip(page, offset)])
        dots = np.maximum(keys @ E4M3[self.q[request, token]].T, 0)
        return scales * (dots @ self.weights[request, token].astype(float))

    def check(self, indices, counts, scores):
        for request in range(len(self.lengths)):
            for token in range(self.tokens):
                expected = self.scores(request, token)
                count = min(self.topk, len(expected))
                assert counts[request, token] == count
                chosen = indices[request, token]
                assert (chosen[count:] == -1).all() and (np.diff(chosen[:count]) > 0).all()
                best = np.sort(np.argsort(-expected, kind="stable")[:count])
                np.testing.assert_allclose(np.sort(expected[chosen[:count]]), np.sort(expected[best]), rtol=1e-3)
                if scores is not None:
                    np.testing.assert_allclose(scores[request, token, :count], expected[chosen[:count]], rtol=1e-3,
                                               atol=1e-3 * np.abs(expected).max(initial=0))


def test_best_tokens():
    case = Indexer()
    indices, counts, scores, best = flashlatent.index_topk(*case.arrays(), topk=case.topk, page_size=16, causal=True,
                                                           scores=True)
    assert indices.dtype == np.int32 and best is None
    case.check(indices, counts, scores)


def test_whole_pages_tell_their_size():
    case = Indexer()
    q, weights, cache, table, lengths = case.arrays()
    indices, counts, _, _ = flashlatent.index_topk(q, weights, cache.reshape(-1, 16, 132), table, lengths,
                                                   topk=case.topk, causal=True)
    case.check(indices, counts, None)
    with pytest.raises(flashlatent.InvalidArgumentError, match="index_cache is uint8"):
        flashlatent.index_topk(q, weights, cache.reshape(-1, 16, 132), table, lengths, topk=8, page_size=8)
    with pytest.raises(flashlatent.InvalidArgumentError, match="page_size is missing"):
        flashlatent.index_topk(q, weights, cache, table, lengths, topk=8)


def test_blocks_of_one_call_are_candidates_of_the_next():
    case = Indexer(lengths=(300, 290), tokens=1, topk=16)
    indices, _, _, blocks = flashlatent.index_topk(*case.arrays(), topk=16, page_size=16, best_blocks=20)
    assert blocks.shape == (2, 1, 20) and blocks[0, 0, 19] == 299 // 8
    inside, _, _, _ = flashlatent.index_topk(*case.arrays(), topk=16, page_size=16, candidates=blocks)
    assert set(inside[0, 0] // 8) <= set(blocks[0, 0])
    assert (np.sort(inside) == indices).all()  # the best 16 tokens are in the best 20 blocks


def test_slots():
    case = Indexer(lengths=(300,), tokens=1)
    slots = np.random.default_rng(1).permutation(200).astype(np.int32).reshape(1, 200)
    positions, _, _, _ = flashlatent.index_topk(*case.arrays(), topk=40, page_size=16)
    indices, _, _, _ = flashlatent.index_topk(*case.arrays(), topk=40, page_size=16, slot_table=slots,
                                              slot_page_size=2)
    assert (indices == slots[0][positions // 2] * 2 + positions % 2).all()


def test_ranks_that_share_a_context():
    """Each rank has half of the tokens; what they keep after the merge is what one rank would choose."""
    case = Indexer(lengths=(320,), tokens=1, topk=30)
    q, weights, cache, table, lengths = case.arrays()
    whole, _, _, _ = flashlatent.index_topk(*case.arrays(), topk=30, page_size=16)
    mine = [flashlatent.index_topk(q, weights, cache, np.ascontiguousarray(table[:, rank * 10:rank * 10 + 10]),
                                   np.array([160], np.int32), topk=30, page_size=16, scores=True) for rank in (0, 1)]
    scores, counts = np.stack([m[2] for m in mine]), np.stack([m[1] for m in mine])
    kept = []
    for rank in (0, 1):
        out, count = flashlatent.merge_topk(scores, counts, mine[rank][0], rank=rank)
        assert (out[0, 0, count[0, 0]:] == -1).all()
        kept.extend(out[0, 0, :count[0, 0]] + 160 * rank)
    assert kept == whole[0, 0].tolist()


def test_append_and_gather():
    case = Indexer(lengths=(100, 60))
    rows = flashlatent.gather_index_keys(case.cache, case.table, np.array([0, 100, 160], np.int32), rows=160,
                                         page_size=16)
    for row, (request, t) in ((0, (0, 0)), (99, (0, 99)), (100, (1, 0)), (159, (1, 59))):
        key = case.keys[case.table[request, t // 16] * 16 + t % 16].astype(float)
        np.testing.assert_allclose(rows[row], key, rtol=1 / 16, atol=2.0**-9 * 2.0**-6 * 2)


def test_refusals():
    case = Indexer()
    for changes, text in (({"topk": 0}, "topk is 0"), ({"topk": 3000}, "topk is 3000"),
                          ({"topk": 8, "index_format": "fp4"}, "index_format is 'fp4'"),
                          ({"topk": 8, "index_format": "mxfp4_68", "q_scale": case.q}, "q_scale is given"),
                          ({"topk": 8, "slot_page_size": 2}, "slot_table is missing"),
                          ({"topk": 8, "candidates": np.zeros((3, 2, 4), np.int32), "candidate_block": -8,
                            "all_scores": True}, "candidate_block is -8; 1 to 1024"),
                          ({"topk": 8, "candidates": np.zeros((3, 2, 4))}, "candidates has .*float64; int32 is expected"),
                          ({"topk": 8, "q_scale": np.zeros((3, 2, 32, 4))}, "q_scale has .*float64; fp32, and .* uint8"),
                          ({"topk": 8, "workspace": np.zeros(10, np.uint8)}, "workspace has 10 bytes; this problem needs"),
                          ({"topk": 8, "kernel": "mla_16"}, "which does not choose index keys")):
        with pytest.raises(flashlatent.FlashLatentError, match=text):
            flashlatent.index_topk(*case.arrays(), page_size=16, **changes)


def test_refused_rows():
    case = Indexer()
    arguments = case.cache, case.table, np.array([0, 0, 0, 0], np.int32)
    for options, text in (({}, "out and rows are missing"), ({"rows": -5}, "^rows is -5; 0 or more"),
                          ({"rows": 0, "out": np.zeros((0, 128), np.float32)}, "rows and out are given")):
        with pytest.raises(flashlatent.InvalidArgumentError, match=text):
            flashlatent.gather_index_keys(*arguments, page_size=16, **options)


def test_pages_are_copied():
    case = Indexer()
    before = case.cache.copy()
    flashlatent.copy_pages(case.cache, case.cache, np.array([[0, 3], [1, 2]]))
    np.testing.assert_array_equal(case.cache[:4], before[[0, 1, 1, 0]])
    np.testing.assert_array_equal(case.cache[4:], before[4:])
    with pytest.raises(flashlatent.InvalidArgumentError, match="^from_ is uint8 .*; expected .*, or .pages, page_bytes"):
        flashlatent.copy_pages(case.cache[0], case.cache[0], np.array([[0, 3]]))


def test_torch_operators():
    torch = pytest.importorskip("torch")
    import flashlatent.torch
    case = Indexer()
    tensors = [torch.from_numpy(array) for array in case.arrays()]
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for device in devices:
        there = [tensor.to(device) for tensor in tensors]
        there[0] = there[0].view(torch.float8_e4m3fn)
        options = {"topk": 40, "page_size": 16, "causal": True}
        indices, counts, scores, best = flashlatent.torch.index_topk(*there, scores=True, **options)
        assert best is None
        case.check(indices.cpu().numpy(), counts.cpu().numpy(), scores.cpu().numpy())
        raw = (there[0].view(torch.uint8), *there[1:])  # opcheck multiplies its arguments, which torch's e4m3 cannot
        torch.library.opcheck(torch.ops.flashlatent.index_topk, raw, {**options, "best_blocks": 3})
        out, count = torch.zeros_like(indices), torch.zeros_like(counts)
        flashlatent.torch.index_topk_out(*there, out=out, counts=count, **options)
        assert torch.equal(out, indices) and torch.equal(count, counts)
        cache = torch.zeros_like(there[2])
        flashlatent.torch.append_index_keys(torch.from_numpy(case.keys).to(device),
                                            torch.arange(len(case.keys), device=device), cache, page_size=16)
        assert torch.equal(cache, there[2])
        merged, merged_counts = flashlatent.torch.merge_topk(scores[None], counts[None], indices, 0)
        assert torch.equal(merged, indices) and torch.equal(merged_counts, counts)
        apart = indices.transpose(0, 1).contiguous().transpose(0, 1)
        torch.library.opcheck(torch.ops.flashlatent.merge_topk, (scores[None], counts[None], apart, 0))
    with pytest.raises(flashlatent.ArgumentTypeError, match="^rank is True; an integer is expected"):
        flashlatent.torch.merge_topk(scores[None], counts[None], indices, True)


def test_all_scores_of_no_tokens():
    case = Indexer(lengths=(0, 0), tokens=1)
    table = np.zeros((2, 0), np.int32)
    _, counts, _, _, scores = flashlatent.index_topk(case.q, case.weights, case.cache, table, case.lengths, topk=4,
                                                     page_size=16, all_scores=True)
    assert scores.shape == (2, 1, 0) and not counts.any()
    for page_size in (-1, 2**31 - 1):
        with pytest.raises(flashlatent.InvalidArgumentError, match="all_scores of|page_size is"):
            flashlatent.index_topk(case.q, case.weights, case.cache, case.table, case.lengths, topk=4,
                                   page_size=page_size, all_scores=True)


@pytest.mark.parametrize("out", [np.zeros((3, 2, 41), np.int32), np.zeros((2, 2, 40), np.int32),
                                 np.zeros((3, 80), np.int32), np.zeros((3, 2, 40), np.int64),
                                 np.zeros((3, 2, 80), np.int32)[..., ::2]])
def test_out_of_another_shape(out):
    case = Indexer()
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"^out is .*; int32 \(3, 2, topk = 40\) with an innermost"):
        flashlatent.index_topk(*case.arrays(), topk=40, page_size=16, out=out)
