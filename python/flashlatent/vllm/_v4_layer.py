"""What FlashLatent's layers for DeepSeek V4 and V4.1 in vLLM have in common: window and compressed tokens in one
softmax, in decode and prompts.

Both caches are read in place: vLLM's own layers copy those of prompts to a bf16 workspace first, and pad heads to 64 or
128.
"""

from typing import Any, Dict, Optional

import torch
from vllm.forward_context import get_forward_context

from flashlatent import Step

from .._sparse import Chosen
from ._records import format_of
from ._slots import Slots, slots_of_requests

_HEADS = (8, 16, 32, 64, 128)  # numbers of heads that vLLM's kernel for queries writes


def step_metadata() -> Any:
    """vLLM's metadata of the step by layers' names; None while memory is measured."""
    return get_forward_context().attn_metadata


class V4Layer:
    """A base of layers' classes, before vLLM's FlashMLA layer."""

    n_local_heads: int
    compress_ratio: int

    @classmethod
    def get_padded_num_q_heads(cls, num_heads: int) -> int:
        for heads in _HEADS:
            if num_heads <= heads:
                return heads
        raise ValueError(f"flashlatent: num_heads is {num_heads} on this rank; at most {_HEADS[-1]} is expected")

    def forward_mqa(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, output: torch.Tensor) -> None:
        if step_metadata() is None:  # no workspace is wanted
            output.zero_()
            return
        super().forward_mqa(q, kv, positions, output)  # type: ignore[misc]

    def _slots(self, tokens: torch.Tensor, swa_metadata: Any, attn_metadata: Any, first: int) -> Slots:
        """The slots of compressed tokens, given as numbers within a request, for rows from `first` on."""
        rows = slice(first, first + tokens.shape[0])
        return slots_of_requests(tokens, swa_metadata.token_to_req_indices[rows], attn_metadata.block_table,
                                 attn_metadata.block_size // self.compress_ratio, swa_metadata.is_valid_token[rows])

    def _attend(self, way: Any, q: torch.Tensor, extra: Optional[torch.Tensor], swa_metadata: Any, chosen: Chosen,
                out: Optional[torch.Tensor], **options: Any) -> None:
        """options: edges of the layer, of which out_fp8 may take the place of `out`."""
        heads = self.n_local_heads  # heads above are padding, which the layer cuts off
        if not hasattr(swa_metadata, "flashlatent_step"):  # vLLM makes this metadata anew for each step
            swa_metadata.flashlatent_step = Step()
        window = self.swa_cache_layer.kv_cache  # type: ignore[attr-defined]
        options.update(_caches(window, extra if chosen.extra_slots is not None else None))
        way(swa_metadata.flashlatent_step, q[:, :heads], window.unsqueeze(-2), chosen,
            None if out is None else out[:, :heads], softmax_scale=self.scale,  # type: ignore[attr-defined]
            attn_sink=self.attn_sink[:heads], **options)  # type: ignore[attr-defined]


def _caches(window: torch.Tensor, extra: Optional[torch.Tensor]) -> Dict[str, Any]:
    """The extra cache and both formats, as arguments of decode() and sparse_prefill()."""
    options: Dict[str, Any] = dict(format_of(window))
    if extra is not None:
        options["extra_kv_cache"] = extra.unsqueeze(-2)
        if "kv_format" in options:
            options["extra_kv_format"] = format_of(extra)["kv_format"]
    return options
