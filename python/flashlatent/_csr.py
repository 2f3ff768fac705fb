"""Page tables of other libraries."""

from typing import Any, Optional, Tuple

from ._arguments import shown, whole_number
from ._errors import InvalidArgumentError


def csr_to_block_table(indptr: Any, indices: Any, last_page_len: Optional[Any] = None, page_size: Optional[int] = None,
                       *, max_pages: Optional[int] = None) -> Tuple[Any, Any]:
    """(block_table, cache_seqlens) from a page table in CSR form, which FlashInfer takes.

    indptr         int32 (batch + 1): request i has the pages indices[indptr[i]:indptr[i + 1]]
    indices        int32 (pages in use); negative: no page. Entries past indptr[-1] are not read
    last_page_len  int32 (batch): tokens in each request's last page, 1 to page_size; with it cache_seqlens is made
                   (int32 (batch)), otherwise it is None
    page_size      tokens per page; needed beside last_page_len
    max_pages      columns of block_table. If it is not given, the most pages of a request, which on a GPU waits for
                   the stream; give it in a CUDA graph and where lengths change from step to step

    Arrays are NumPy's or torch's; results are of the same package, on the same device. Columns past a request's pages
    are -1. A request without pages has length 0. Any integer dtype is taken. Raises InvalidArgumentError (a ValueError)
    for arrays that don't fit, and on the CPU for values that don't, such as a max_pages below the most pages of a
    request, or a page number or length beyond int32. On a GPU no value is checked: numbers beyond int32 become the
    largest int32, a page that no cache has; places outside of indices become -1.
    """
    if (last_page_len is None) != (page_size is None):
        missing = "page_size" if page_size is None else "last_page_len"
        raise InvalidArgumentError(f"{missing} is None; both of last_page_len and page_size are expected, or none")
    page_size, max_pages = (None if value is None else whole_number(name, value, least, 2**31 - 1)
                            for name, value, least in (("page_size", page_size, 1), ("max_pages", max_pages, 0)))
    torch = _torch_of(indptr)
    arrays = {"indptr": indptr, "indices": indices, "last_page_len": last_page_len}
    indptr, indices, last_page_len = (_vector(name, array, torch, indptr) for name, array in arrays.items())
    if len(indptr) == 0:
        raise InvalidArgumentError("indptr has no entry; batch + 1 are expected")
    if last_page_len is not None and len(last_page_len) != len(indptr) - 1:
        raise InvalidArgumentError(f"last_page_len has {len(last_page_len)} entries and indptr {len(indptr)}; one "
                                   "fewer than in indptr is expected")
    if torch is None:
        import numpy

        arange, where = numpy.arange, numpy.where
        clip = lambda x, high: numpy.clip(x, 0, high)  # noqa: E731
        int32 = lambda x: numpy.clip(x, -2**31, 2**31 - 1).astype(numpy.int32)  # noqa: E731
    else:
        arange = lambda n: torch.arange(n, device=indptr.device)  # noqa: E731
        where, clip = torch.where, lambda x, high: x.clamp(0, high)
        int32 = lambda x: x.clamp(-2**31, 2**31 - 1).int()  # noqa: E731
    pages = indptr[1:] - indptr[:-1]
    waits = torch is not None and indptr.device.type != "cpu"
    lengths = None
    if last_page_len is not None:
        lengths = where(pages > 0, (pages - 1) * page_size + last_page_len, 0 * pages)
    if not waits:
        _check_values(indptr, indices, last_page_len, page_size, pages, lengths)
    if max_pages is None or not waits:
        most = int(pages.max()) if len(pages) else 0
        if max_pages is not None and max_pages < most:
            raise InvalidArgumentError(f"max_pages is {max_pages}; a request has {most} pages")
        max_pages = most if max_pages is None else max_pages
    column = arange(max_pages)
    at = indptr[:-1, None] + column[None]
    if len(indices):
        named = (column[None] < pages[:, None]) & (at >= 0) & (at < len(indices))
        block_table = int32(where(named, indices[clip(at, len(indices) - 1)], -1))
    else:
        block_table = int32(0 * at - 1)
    return block_table, None if lengths is None else int32(lengths)


def _vector(name: str, array: Any, torch: Optional[Any], like: Any) -> Any:
    """int64 (n), of indptr's package; None where it is not given."""
    if array is None and name == "last_page_len":
        return None
    if torch is not None:
        if not isinstance(array, torch.Tensor) or array.device != like.device:
            what = array.device if isinstance(array, torch.Tensor) else shown(array)
            raise InvalidArgumentError(f"{name} is {what}; indptr is a torch tensor on {like.device}, and the same is "
                                       "expected")
        whole = not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)
        whole, dimensions = whole or array.shape == (0,), array.dim()
    else:
        import numpy

        array = numpy.asarray(array)
        whole, dimensions = array.dtype.kind in "iu" or array.shape == (0,), array.ndim
    if not whole or dimensions != 1:
        raise InvalidArgumentError(f"{name} is {array.dtype} {tuple(array.shape)}; integers of one dimension are "
                                   "expected")
    numbers = array.long() if torch is not None else array.astype("int64")
    if "uint64" in str(array.dtype) and numbers.shape != (0,):  # from 2**63 on they have become negative
        where = numpy.where if torch is None else torch.where
        numbers = where(numbers < 0, _MOST, numbers)
    return numbers


def _check_values(indptr: Any, indices: Any, last_page_len: Any, page_size: Any, pages: Any, lengths: Any) -> None:
    """Raises for the first value that names no page or token."""
    if indptr[0] < 0 or indptr[-1] > len(indices):
        at = 0 if indptr[0] < 0 else len(indptr) - 1
        raise InvalidArgumentError(f"indptr[{at}] is {int(indptr[at])}; 0 to {len(indices)} are accepted, as indices "
                                   f"has {len(indices)} entries")
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        at = int(falls.nonzero()[0][0])
        raise InvalidArgumentError(f"indptr[{at + 1}] is {int(indptr[at + 1])} and indptr[{at}] {int(indptr[at])}; "
                                   "entries that never fall are expected")
    first = int(indptr[0])
    used = indices[first:int(indptr[-1])]
    beyond = (used < -2**31) | (used >= 2**31)
    if beyond.any():
        at = int(beyond.nonzero()[0][0])
        raise InvalidArgumentError(f"indices[{first + at}] is {_shown(used[at])}; page numbers of 32 bits, below "
                                   f"{2**31}, are accepted")
    if last_page_len is None or len(pages) == 0:
        return
    wrong = (pages > 0) & ((last_page_len < 1) | (last_page_len > page_size))
    if wrong.any():
        at = int(wrong.nonzero()[0][0])
        raise InvalidArgumentError(f"last_page_len[{at}] is {int(last_page_len[at])}; 1 to page_size = {page_size} are "
                                   "accepted")
    if lengths.max() >= 2**31:
        raise InvalidArgumentError(f"page_size is {page_size}, and a request of {int(pages.max())} pages has "
                                   f"{int(lengths.max())} tokens; at most {2**31 - 1} are accepted")


_MOST = 2**63 - 1


def _shown(number: Any) -> str:
    """A value of an array for a message; all unsigned values that int64 does not hold give the same text."""
    return f"{_MOST} or more" if int(number) == _MOST else str(int(number))


def _torch_of(array: Any) -> Optional[Any]:
    if type(array).__module__.partition(".")[0] != "torch":
        return None
    import torch
    return torch
