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


WRONG = [
    (r"indptr\[1\] is 4; 0 to 3", {"indptr": [0, 4]}),
    (r"indptr\[0\] is -1; 0 to 3", {"indptr": [-1, 3]}),
    (r"indptr\[2\] is 1 and indptr\[1\] 3", {"indptr": [0, 3, 1]}),
    ("indptr has no entry", {"indptr": []}),
    (r"indptr is .*\(1, 2\); integers of one", {"indptr": [[0, 3]]}),
    (r"indices is .*float.*\(1\); integers|indices is .*float.*\(1,\); integers", {"indices": [0.5]}),
    (r"last_page_len\[0\] is 17; 1 to page_size = 16", {"last_page_len": [17], "page_size": 16}),
    (r"last_page_len\[1\] is 0; 1 to", {"indptr": [0, 1, 2], "last_page_len": [1, 0], "page_size": 16}),
    ("last_page_len has 1 entries and indptr 3", {"indptr": [0, 1, 2], "last_page_len": [1], "page_size": 16}),
    ("page_size is 0; a whole number from 1", {"last_page_len": [1], "page_size": 0}),
    ("page_size is 2147483647, and a request of 3 pages", {"last_page_len": [1], "page_size": 2**31 - 1}),
    ("max_pages is -1; a whole number from 0", {"max_pages": -1}),
    ("max_pages is 2.5; a whole number", {"max_pages": 2.5}),
]


@pytest.mark.parametrize("package", ["numpy", "torch"])
@pytest.mark.parametrize("match, options", WRONG)
def test_values_that_name_nothing_are_refused(package, match, options):
    make = np.array if package == "numpy" else pytest.importorskip("torch").tensor
    arguments = {"indptr": [0, 3], "indices": [1, 2, 3], **options}
    for name in ("indptr", "indices", "last_page_len"):
        if name in arguments:
            arguments[name] = make(arguments[name])
    with pytest.raises(flashlatent.InvalidArgumentError, match=match):
        flashlatent.csr_to_block_table(**arguments)


def test_unsigned_and_mixed_arrays():
    unsigned = [np.array(x, np.uint32) for x in ([0, 0, 2], [7, 5], [0, 3])]
    table, lengths = flashlatent.csr_to_block_table(*unsigned, 16)
    assert table.tolist() == [[-1, -1], [7, 5]] and lengths.tolist() == [0, 19]
    assert flashlatent.csr_to_block_table([0, 0], [], [0], 4)[0].shape == (1, 0)
    torch = pytest.importorskip("torch")
    with pytest.raises(flashlatent.InvalidArgumentError, match="indices is a ndarray; indptr is a torch tensor on cpu"):
        flashlatent.csr_to_block_table(torch.tensor([0, 1]), np.array([3]))


@pytest.mark.parametrize("package", ["numpy", "torch"])
def test_page_numbers_beyond_32_bits(package):
    make = np.array if package == "numpy" else pytest.importorskip("torch").tensor
    for page in (2**32, 2**32 + 7, 2**31, -2**31 - 1, -2**32 + 3):
        with pytest.raises(flashlatent.InvalidArgumentError, match=rf"indices\[2\] is {page}; page numbers of 32 bits"):
            flashlatent.csr_to_block_table(make([1, 3]), make([9, 2, page]), make([1]), 4)
        # Entries that no request has are not looked at.
        assert flashlatent.csr_to_block_table(make([0, 2]), make([9, 2, page]), make([1]), 4)[0].tolist() == [[9, 2]]
        assert flashlatent.csr_to_block_table(make([1, 3]), make([page, 2, 5]), make([1]), 4)[0].tolist() == [[2, 5]]
    assert flashlatent.csr_to_block_table(make([0, 2]), make([2**31 - 1, -1]), make([1]), 4)[0].tolist() == [[2**31 - 1, -1]]


def test_unsigned_numbers_that_no_int64_holds():
    indices = np.array([7, 2**64 - 1], np.uint64)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"indices\[1\] is 9223372036854775807 or more"):
        flashlatent.csr_to_block_table(np.array([0, 2]), indices)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"indptr\[1\] is 9223372036854775807; 0 to 2"):
        flashlatent.csr_to_block_table(np.array([0, 2**63 + 1], np.uint64), np.array([7, 8]))


def test_indptr_whose_differences_wrap():
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"indptr\[2\] is -9223372036854775808 and indptr\[1\]"):
        flashlatent.csr_to_block_table(np.array([0, 2**63 - 1, -2**63, 1]), np.array([7]))


@pytest.mark.parametrize("package", ["numpy", "torch"])
def test_nothing(package):
    make = np.array if package == "numpy" else pytest.importorskip("torch").tensor
    for batch, pages in ((0, 0), (0, 3), (2, 0), (2, 3)):
        table, lengths = flashlatent.csr_to_block_table(make([0] * (batch + 1)), make([5] * pages), make([7] * batch), 4)
        assert tuple(table.shape) == (batch, 0) and lengths.tolist() == [0] * batch


def test_on_a_gpu_nothing_is_taken_for_another_page():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    on_gpu = [torch.tensor(x, device="cuda") for x in ([0, 2, 9], [2**32, 3], [1, 2**40])]
    table, lengths = flashlatent.csr_to_block_table(*on_gpu, 4, max_pages=3)
    assert table.tolist() == [[2**31 - 1, 3, -1], [-1, -1, -1]]
    assert lengths.tolist() == [5, 2**31 - 1]
