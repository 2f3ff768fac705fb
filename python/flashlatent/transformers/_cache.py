"""The cache of generate(): requests' latents in pages, without the batch's padding."""

import weakref

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from .._copies import refuse
from .._errors import InvalidArgumentError
from ._pages import Pages, content_ids
from ._step import Step


class _Layer(CacheLayerMixin):
    """Stands for one layer where transformers looks at layers; the LatentCache's pages hold the tokens."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, owner):
        super().__init__()
        self.owner = weakref.ref(owner)

    def lazy_initialization(self, key_states, value_states):
        self.update(key_states, value_states)

    def update(self, key_states, value_states, *args, **options):
        raise InvalidArgumentError("past_key_values is a LatentCache, and the model's attention is not FlashLatent's; "
                                   "call flashlatent.transformers.enable(model), and the model itself, not a "
                                   "part of it")

    def get_mask_sizes(self, query_length):
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self):
        return self.owner().get_seq_length()

    def get_max_length(self):
        return -1


class _Rows:
    """What a cache holds, in an object of its own, so that it can be given back when the cache is collected."""

    def __init__(self):
        self.pages = None  # Pages
        self.sequences = []
        self.step = None  # of the last pass
        self.history = []  # (token ids, positions, which are real or None) of each pass; None: prefixes are not shared

    def known(self):
        """The token ids of each sequence, up to the first token that is not at its own position; None if unknown."""
        if not self.history or (self.step is not None and not self.step.finished):
            return None
        ids, positions = (torch.cat([part[k] for part in self.history], 1).cpu().numpy() for k in (0, 1))
        real = [np.ones(part[0].shape, bool) if part[2] is None else part[2] for part in self.history]
        real = np.concatenate(real, 1)
        tokens = [row[kept] for row, kept in zip(ids, real)]
        if any((row[kept] != np.arange(kept.sum())).any() for row, kept in zip(positions, real)):
            return None
        return tokens

    def commit(self):
        """Registers full pages under their tokens, for others to share."""
        tokens = self.known()
        if tokens is None:
            self.history = None
            return
        for sequence, row in zip(self.sequences, tokens):
            self.pages.pool.commit(sequence, content_ids(row, self.pages.layout.page_size))

    def release(self):
        if self.pages is not None and self.sequences:
            if self.history and not self.pages.grows:
                self.commit()
            for sequence in self.sequences:
                self.pages.pool.release(sequence)
        self.sequences, self.history, self.step = [], [], None


class LatentCache(Cache):
    """past_key_values of an enabled model. generate() makes one itself; for a loop of your own:

        cache = flashlatent.transformers.LatentCache(model)
        with torch.no_grad():
            logits = model(input_ids, past_key_values=cache).logits       # again and again, with new tokens

    attention_mask (batch, tokens so far and new) may leave tokens out anywhere: they take no room in the cache. The
    cache's pages are given back when it is released or collected.
    """

    def __init__(self, model):
        enabled = getattr(model, "_flashlatent", None)
        if enabled is None:
            raise InvalidArgumentError(f"model is a {type(model).__name__} that is not enabled; call "
                                       "flashlatent.transformers.enable(model)")
        self._enabled = enabled
        self._rows = _Rows()
        self._seen = None  # bool (batch, tokens so far, padding included)
        self._finalizer = weakref.finalize(self, self._rows.release)
        self._finalizer.atexit = False
        super().__init__(layers=[_Layer(self) for _ in range(enabled.layout.layers)])

    __reduce_ex__ = refuse("a LatentCache", "its tokens are in pages that rows share; for several continuations of one "
                           "prompt call batch_repeat_interleave(), for another prompt make a LatentCache(model)")

    # What transformers asks of a cache.

    def get_seq_length(self, layer_idx=0):
        """Tokens so far, padding included."""
        return 0 if self._seen is None else self._seen.shape[1]

    def get_mask_sizes(self, query_length, layer_idx):
        """(columns of a mask for so many new tokens, the first column)."""
        return self.get_seq_length() + query_length, 0

    @property
    def is_initialized(self):
        """Has it had a pass?"""
        return self._seen is not None

    @property
    def batch_size(self):
        """Rows; -1 before the first pass."""
        return -1 if self._seen is None else self._seen.shape[0]

    def reset(self):
        """Empties the cache."""
        self._rows.release()
        self._seen = None

    release = reset

    def reorder_cache(self, beam_idx):
        """batch_select_indices() under the name that beam search uses."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats):
        """Each row becomes `repeats` rows side by side, which share its pages: one prompt, several continuations."""
        if self._seen is not None:
            self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def batch_select_indices(self, indices):
        """Row i becomes a copy of row indices[i]. Pages are shared, and copied when one of their owners appends."""
        if self._seen is None:
            return
        indices = torch.as_tensor(indices).tolist()
        for i in indices:
            if not 0 <= i < len(self._seen):
                raise InvalidArgumentError(f"indices has {i}; rows of this cache are 0 to {len(self._seen) - 1}")
        rows, pool = self._rows, self._rows.pages.pool
        chosen = [pool.fork(rows.sequences[i]) for i in indices]
        for sequence in rows.sequences:
            pool.release(sequence)
        rows.sequences, rows.history = chosen, None
        self._seen = self._seen[indices]

    def crop(self, tokens_to_remove):
        """Refused: tokens stay; 0 of them may be removed."""
        if tokens_to_remove:
            raise InvalidArgumentError(f"tokens_to_remove is {tokens_to_remove}; a LatentCache keeps its tokens (0 is "
                                       "accepted): generate without an assistant model")

    # What the model's passes do with it.

    def reuse(self, input_ids):
        """Before a first pass over these tokens (batch, n), none of which is padding: takes the first tokens that the
        pool holds already, equally many in every row. get_seq_length() then says how many."""
        pages = self._enabled.shared_pages()
        if pages is None or self._seen is not None:
            return
        size, ids = pages.layout.page_size, input_ids.cpu().numpy()
        contents = [content_ids(row[:-1], size) for row in ids]  # the last token is computed: its logits are needed
        whole = min((pages.pool.find(row) for row in contents), default=0)
        if not whole:
            return
        rows, tokens = self._rows, whole * size
        rows.pages = pages
        rows.sequences = [pages.pool.create(row[:whole], tokens)[0] for row in contents]
        positions = torch.arange(tokens, device=input_ids.device).expand(len(ids), -1)
        rows.history = [(input_ids[:, :tokens], positions, None)]
        self._seen = np.ones((len(ids), tokens), bool)

    def begin(self, inputs, attention_mask, input_ids, positions):
        """A pass over `inputs` (batch, tokens, ...): makes room for them, and the Step of its layers. Their ids, if
        known, and positions say which pages others may share."""
        batch, tokens = inputs.shape[:2]
        if inputs.device != self._enabled.layout.device:
            raise InvalidArgumentError(f"input is on {inputs.device} and the model was on "
                                       f"{self._enabled.layout.device} when it was enabled; call "
                                       "flashlatent.transformers.enable(model) again")
        if self._seen is not None and batch != len(self._seen):
            raise InvalidArgumentError(f"input_ids has {batch} rows and past_key_values {len(self._seen)}; as many are "
                                       "expected")
        rows = self._rows
        if rows.step is not None and not rows.step.finished:
            raise InvalidArgumentError("past_key_values is a LatentCache whose last pass did not reach the last layer, "
                                       "so that tokens are missing; reset() it, or make a new one")
        real = self._real(batch, tokens, attention_mask)
        new = [tokens] * batch if real is None else real.sum(1).tolist()
        if rows.pages is None:
            rows.pages = self._enabled.pages_for(batch, max(new, default=0))
        if not rows.sequences:
            rows.sequences = [rows.pages.pool.create([], 0)[0] for _ in range(batch)]
        elif len(rows.history or ()) == 1:
            rows.commit()  # equal prompts share pages from now on
        pool = rows.pages.pool
        past = [pool.length(sequence) for sequence in rows.sequences]
        rows.sequences = rows.pages.append(rows.sequences, new)
        self._remember(input_ids, positions, real)

        table, _ = rows.pages.table(rows.sequences)
        slots = _slots(table, past, new, rows.pages.layout.page_size)
        device = rows.pages.layout.device
        chosen = None if real is None else torch.from_numpy(np.flatnonzero(real)).to(device)
        on_device = torch.from_numpy(table).to(device) if any(past) else None
        rows.step = Step(rows.pages.layout, self._enabled.dims, rows.pages.caches, new, past,
                         torch.from_numpy(slots).to(device), on_device, chosen)
        seen = np.ones((batch, tokens), bool) if real is None else real
        self._seen = seen if self._seen is None else np.concatenate([self._seen, seen], 1)
        return rows.step

    def _real(self, batch, tokens, attention_mask):
        """Which new tokens are real, bool (batch, tokens); None: all."""
        if attention_mask is None:
            return None
        past = self.get_seq_length()
        if attention_mask.dim() != 2 or tuple(attention_mask.shape) != (batch, past + tokens):
            raise InvalidArgumentError(f"attention_mask is {tuple(attention_mask.shape)}; {(batch, past + tokens)} is "
                                       "expected: rows, and the tokens so far and the new ones")
        mask = attention_mask.to(torch.bool).cpu().numpy()
        if past and (mask[:, :past] != self._seen).any():
            row = int((mask[:, :past] != self._seen).any(1).argmax())
            raise InvalidArgumentError(f"attention_mask of row {row} is another for tokens in past_key_values than "
                                       "when they were new; what was left out then stays so, and the other way round")
        real = mask[:, past:]
        return None if real.all() else real

    def _remember(self, input_ids, positions, real):
        rows = self._rows
        if rows.history is None:
            return
        if input_ids is None:
            rows.history = None
        else:
            rows.history.append((input_ids, positions.expand(input_ids.shape), real))


def _slots(table, past, new, page_size):
    """The slots in the cache, page * page_size + offset, of new[i] tokens after past[i] others of each request."""
    new = np.asarray(new, np.int64)
    rows = np.repeat(np.arange(len(new)), new)
    first = np.repeat(np.asarray(past, np.int64) - (np.cumsum(new) - new), new)
    position = np.arange(len(rows)) + first
    return table[rows, position // page_size].astype(np.int64) * page_size + position % page_size
