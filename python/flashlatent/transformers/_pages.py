"""A model's pages: the pool of their numbers and the arrays of all layers."""

import collections
import hashlib

import numpy as np
import torch

from .. import _native
from .._errors import ExhaustedError


def content_ids(tokens, page_size):
    """The pool's 64-bit names of the full pages of a sequence of token ids."""
    full = np.asarray(tokens, np.int64)[:len(tokens) // page_size * page_size]
    return [int.from_bytes(hashlib.blake2b(page.tobytes(), digest_size=8).digest(), "little")
            for page in full.reshape(-1, page_size)]


class Pages:
    """Pages, in a fixed or growing number; sequences are handles of this object."""

    def __init__(self, layout, pages, grows):
        self.layout, self.grows = layout, grows
        self.pool = _native.PagePool(pages, layout.page_size)
        self.caches = layout.arrays(pages)

    def append(self, sequences, counts):
        """Makes room for so many more tokens of each sequence; returns the sequences. If pages or memory run out, no
        sequence has changed."""
        needed, stats = self._pages_needed(sequences, counts), self.pool.stats
        if needed > stats["free"] + stats["cached"]:
            if not self.grows:
                raise ExhaustedError(f"pages is {stats['pages']} in enable(), {stats['used']} of them in use; this "
                                     f"step needs {needed} more: give more pages, or None for a cache that grows")
            self._grow(2 * stats["used"] + needed)
        copies = [copy[:2] for sequence, count in zip(sequences, counts)
                  if count and (copy := self.pool.append(sequence, count)) is not None]
        self._copy(self.caches, self.caches, copies)
        return sequences

    def _pages_needed(self, sequences, counts):
        size, needed = self.layout.page_size, 0
        holders = collections.defaultdict(list)  # of partly filled pages: which sequences append, which don't
        for sequence, count in zip(sequences, counts):
            length = self.pool.length(sequence)
            needed += -(-(length + count) // size) - -(-length // size)
            if length % size:
                holders[self.pool.pages(sequence)[-1]].append(count > 0)
        # The last one that appends to a shared page keeps it, the others get copies.
        return needed + sum(len(appends) - 1 if all(appends) else sum(appends) for appends in holders.values())

    def _grow(self, pages):
        """Makes arrays of so many pages, then grows the pool. Each layer's old pages are the first of its new pages, so
        numbers and sharing stay. A failure between layers leaves some arrays larger than the pool, which does no
        harm."""
        for layer, before in enumerate(self.caches):
            if len(before) < pages:
                after = torch.empty(pages, *before.shape[1:], dtype=before.dtype, device=before.device)
                after[:len(before)] = before
                self.caches[layer] = after
        self.pool.grow(pages)

    def _copy(self, sources, targets, pairs):
        if pairs:
            pairs = torch.tensor(pairs, dtype=torch.int64, device=self.layout.device)
            for source, target in zip(sources, targets):
                _native.copy_pages(source, target, pairs)

    def table(self, sequences):
        """(page table int32 (sequences, most pages), lengths), NumPy arrays."""
        most = max((len(self.pool.pages(sequence)) for sequence in sequences), default=0)
        return self.pool.write_page_table(sequences, max(most, 1))
