"""The query tokens of a step's decode requests, uniform or ragged."""

from typing import Any, NamedTuple, Optional, Tuple

import torch

from flashlatent import Step


class Queries(NamedTuple):
    """How many query tokens requests have.

    A batch is uniform if all requests have the same number, except for padding at its end, which vLLM's graphs have:
    requests of length 0 without query tokens. It goes to the kernels as (requests, tokens, heads, dim). Any other batch
    is ragged: requests lie side by side, cut by cu_seqlens, and rows of q past the last one are padding.
    """

    requests: int
    tokens: int  # the most query tokens of a request
    total: int  # without padding
    uniform: bool
    cu_seqlens: torch.Tensor

    @classmethod
    def of(cls, starts_cpu: torch.Tensor, starts: torch.Tensor, rows: int) -> "Queries":
        """starts: (requests + 1); rows: of q, padding included."""
        bounds = starts_cpu.numpy()  # operators of torch take five times as long, in each step
        lengths = bounds[1:] - bounds[:-1]
        requests, total, tokens = len(lengths), int(bounds[-1] - bounds[0]), max(int(lengths.max()), 1)
        # No request has more than `tokens`: if the first `full` requests have the total, each of them has `tokens`.
        full, rest = divmod(total, tokens)
        uniform = rest == 0 and rows == requests * tokens and int(bounds[full] - bounds[0]) == total
        return cls(requests, tokens, total, uniform, starts)

    def attend(self, step: Step, q: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor,
               cache_seqlens: torch.Tensor, *, want_lse: bool, v_dim: int, q_rope: Optional[torch.Tensor] = None,
               **options: Any) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """Causal decode of q (rows, heads, dim), or of q and q_rope, which have dim together: out (rows, heads, v_dim)
        and, if wanted, lse (rows, heads)."""
        if self.uniform:
            q, q_rope = (None if part is None else part.view(self.requests, self.tokens, *part.shape[1:])
                         for part in (q, q_rope))
            out, lse = step.decode(q, kv_cache, block_table, cache_seqlens, q_rope=q_rope, v_dim=v_dim, causal=True,
                                   **options)
            return out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1) if want_lse else None
        out = q.new_empty(q.shape[0], q.shape[1], v_dim)
        out[self.total:].zero_()
        _, lse = step.decode(q[:self.total], kv_cache, block_table, cache_seqlens, v_dim=v_dim, causal=True,
                             q_rope=None if q_rope is None else q_rope[:self.total], cu_seqlens_q=self.cu_seqlens,
                             tokens=self.tokens, out=out[:self.total], **options)
        if not want_lse:
            return out, None
        rows = torch.arange(q.shape[0], dtype=self.cu_seqlens.dtype, device=q.device)
        request = torch.searchsorted(self.cu_seqlens, rows, right=True) - 1
        request.clamp_(0, self.requests - 1)
        token = (rows - self.cu_seqlens[request]).clamp_(0, self.tokens - 1)
        return out, lse[request, :, token.long()]
