"""Page tables of other libraries."""

from typing import Any, Optional, Tuple


def csr_to_block_table(indptr: Any, indices: Any, last_page_len: Optional[Any] = None, page_size: Optional[int] = None,
                       *, max_pages: Optional[int] = None) -> Tuple[Any, Any]:
    """(block_table, cache_seqlens) from a page table in CSR form, which FlashInfer takes.

    indptr         int32 (batch + 1): request i has the pages indices[indptr[i]:indptr[i + 1]]
    indices        int32 (pages in use)
    last_page_len  int32 (batch): tokens in each request's last page, 1 to page_size; with it cache_seqlens is made
                   (int32 (batch)), otherwise it is None
    page_size      tokens a page; needed beside last_page_len
    max_pages      columns of block_table. If it is not given, the most pages of a request, which on a GPU waits for
                   the stream; give it in a CUDA graph and where lengths change from step to step

    Arrays are NumPy's or torch's; results are of the same package, on the same device. Columns past a request's pages
    are -1. A request without pages has length 0. Raises ValueError if max_pages is smaller than the most pages of a
    request, where that is known without waiting.
    """
    if (last_page_len is None) != (page_size is None):
        missing = "page_size" if page_size is None else "last_page_len"
        raise ValueError(f"{missing} is None; both of last_page_len and page_size are expected, or none")
    torch = _torch_of(indptr)
    if torch is None:
        import numpy

        indptr, indices = numpy.asarray(indptr), numpy.asarray(indices)
        arange, where = numpy.arange, numpy.where
        clip = lambda x, high: numpy.clip(x, 0, high)  # noqa: E731
        int32 = lambda x: x.astype(numpy.int32)  # noqa: E731
    else:
        arange = lambda n: torch.arange(n, device=indptr.device)  # noqa: E731
        where, clip, int32 = torch.where, lambda x, high: x.clamp(0, high), lambda x: x.int()
    pages = indptr[1:] - indptr[:-1]
    waits = torch is not None and indptr.device.type != "cpu"
    if max_pages is None or not waits:
        most = int(pages.max()) if len(pages) else 0
        if max_pages is not None and max_pages < most:
            raise ValueError(f"max_pages is {max_pages}; a request has {most} pages")
        max_pages = most if max_pages is None else max_pages
    column = arange(max_pages)
    at = indptr[:-1, None] + column[None]
    if len(indices):
        block_table = int32(where(column[None] < pages[:, None], indices[clip(at, len(indices) - 1)], -1))
    else:
        block_table = int32(0 * at - 1)
    if last_page_len is None:
        return block_table, None
    return block_table, int32(where(pages > 0, (pages - 1) * page_size + last_page_len, 0 * pages))


def _torch_of(array: Any) -> Optional[Any]:
    if type(array).__module__.partition(".")[0] != "torch":
        return None
    import torch
    return torch
