"""Attention of query tokens to slots of a cache, chosen for each query token: decode and prompts."""

import logging
from typing import Any, NamedTuple, Optional, Set, Tuple

import torch

import flashlatent

_logger = logging.getLogger("flashlatent")
_refused: Set[Tuple[Any, ...]] = set()  # what sparse_prefill() has refused in this process


class Chosen(NamedTuple):
    """Slots of each row, int32 (rows, topk), -1 where none; how many of them are read, int32 (rows), or None: all."""

    slots: torch.Tensor
    counts: Optional[torch.Tensor] = None
    extra_slots: Optional[torch.Tensor] = None
    extra_counts: Optional[torch.Tensor] = None

    def rows(self, start: int, stop: int) -> "Chosen":
        return Chosen(*(None if part is None else part[start:stop] for part in self))

    def arguments(self) -> dict:
        """As arguments of decode() and sparse_prefill()."""
        given = dict(indices=self.slots.unsqueeze(1), topk_length=self.counts)
        if self.extra_slots is not None:
            given.update(extra_indices=self.extra_slots.unsqueeze(1), extra_topk_length=self.extra_counts)
        return given


def decode(step: flashlatent.Step, q: torch.Tensor, kv_cache: torch.Tensor, chosen: Chosen, out: Optional[torch.Tensor],
           q_rope: Optional[torch.Tensor] = None, **options: Any) -> torch.Tensor:
    """q (rows, heads, dim), or q and q_rope, which have dim together, each row a request of its own, into out, or into
    out_fp8 of the options; returns lse (rows, heads)."""
    for name in ("q_rotate", "out_rotate"):
        rotation = options.get(name)
        if rotation is not None:
            options[name] = rotation._replace(positions=rotation.positions.unsqueeze(1))
    q, q_rope, out = (None if rows is None else rows.unsqueeze(1) for rows in (q, q_rope, out))
    _, lse = step.decode(q, kv_cache, q_rope=q_rope, out=out, **chosen.arguments(), **options)
    return lse.squeeze(2)


def prefill(step: flashlatent.Step, q: torch.Tensor, kv_cache: torch.Tensor, chosen: Chosen, out: Optional[torch.Tensor],
            q_rope: Optional[torch.Tensor] = None, **options: Any) -> torch.Tensor:
    """The same for a prompt's rows: by sparse_prefill(), or by decode where sparse_prefill() refuses such a call."""
    kind = (q.device.type, q.dtype, q.shape[1:], kv_cache.dtype, kv_cache.shape[-1], options.get("extra_kv_format"))
    if kind not in _refused:
        try:
            return flashlatent.sparse_prefill(q, kv_cache, q_rope=q_rope, out=out, with_max_logits=False,
                                              **chosen.arguments(), **options)[2]
        except flashlatent.UnsupportedError as error:
            _refused.add(kind)
            _logger.info("flashlatent: prompts take the decode kernels: %s", error)
    return decode(step, q, kv_cache, chosen, out, q_rope, **options)
