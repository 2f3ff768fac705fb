"""Page tables in CSR form become block tables that decode() takes."""

import numpy as np
import pytest

import flashlatent


def table(indptr, indices):
    pages = np.diff(indptr)
    expected = np.full((len(pages), max(pages, default=0)), -1, np.int32)
    for i, n in enumerate(pages):
        expected[i, :n] = indices[indptr[i]:indptr[i + 1]]
    return expected


CSR = [([0, 3, 3, 4, 9], [5, 0, 2, 7, 1, 3, 8, 6, 4], [2, 0, 16, 1]), ([0, 0], [], [0]), ([0, 1], [3], [16])]


@pytest.mark.parametrize("indptr, indices, last", CSR)
def test_numpy(indptr, indices, last):
    indptr, indices, last = (np.array(x, np.int32) for x in (indptr, indices, last))
    got, lengths = flashlatent.csr_to_block_table(indptr, indices, last, 16)
    np.testing.assert_array_equal(got, table(indptr, indices))
    pages = np.diff(indptr)
    np.testing.assert_array_equal(lengths, np.where(pages > 0, (pages - 1) * 16 + last, 0))
    assert got.dtype == lengths.dtype == np.int32
    wide, none = flashlatent.csr_to_block_table(indptr, indices, max_pages=7)
    assert none is None and wide.shape == (len(pages), 7)
    np.testing.assert_array_equal(wide[:, :got.shape[1]], got)
    assert (wide[:, got.shape[1]:] == -1).all()


@pytest.mark.parametrize("indptr, indices, last", CSR)
def test_torch(indptr, indices, last):
    torch = pytest.importorskip("torch")
    arrays = [np.array(x, np.int32) for x in (indptr, indices, last)]
    expected = flashlatent.csr_to_block_table(*arrays, 16)
    got = flashlatent.csr_to_block_table(*map(torch.from_numpy, arrays), 16)
    for a, b in zip(expected, got):
        assert b.dtype == torch.int32
        np.testing.assert_array_equal(a, b.numpy())


def test_decode_reads_the_same_tokens():
    rng = np.random.default_rng(1)
    cache = rng.standard_normal((6, 16, 1, 576)).astype(np.float16)
    q = rng.standard_normal((2, 1, 4, 576)).astype(np.float16)
    indptr, indices, last = (np.array(x, np.int32) for x in ([0, 2, 5], [4, 1, 0, 5, 2], [3, 16]))
    block_table, lengths = flashlatent.csr_to_block_table(indptr, indices, last, 16)
    got, _ = flashlatent.decode(q, cache, block_table, lengths, softmax_scale=0.1)
    for i in range(2):
        rows = cache[indices[indptr[i]:indptr[i + 1]]].reshape(-1, 576)[:lengths[i]].astype(np.float64)
        scores = q[i, 0].astype(np.float64) @ rows.T * 0.1
        weights = np.exp(scores - scores.max(1, keepdims=True))
        expected = weights / weights.sum(1, keepdims=True) @ rows[:, :512]
        np.testing.assert_allclose(got[i, 0], expected, atol=4e-3)


def test_errors_name_the_argument():
    indptr, indices = np.array([0, 3], np.int32), np.array([1, 2, 3], np.int32)
    with pytest.raises(ValueError, match="max_pages is 2; a request has 3 pages"):
        flashlatent.csr_to_block_table(indptr, indices, max_pages=2)
    with pytest.raises(ValueError, match="page_size is None; both"):
        flashlatent.csr_to_block_table(indptr, indices, np.array([1], np.int32))
