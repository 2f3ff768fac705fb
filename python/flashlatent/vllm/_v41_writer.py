"""Writes DeepSeek V4.1's compressed tokens. vLLM's own kernel for records of 288 bytes converts to e2m1 by an instruction
that Hopper lacks."""

from typing import Any, Optional

import torch
from vllm.forward_context import get_forward_context

import flashlatent

from ._records import format_of


def insert_compressed(compressor: Any, latent: Optional[torch.Tensor], positions: torch.Tensor,
                      rotary_emb: Any) -> None:
    """In place of DeepseekCompressor.insert_cache()."""
    metadata = get_forward_context().attn_metadata
    if latent is None or not isinstance(metadata, dict):  # memory is measured
        return
    name = compressor.k_cache_prefix
    write(latent, positions, rotary_emb.cos_sin_cache, compressor._static_forward_context[name].kv_cache,
          metadata[name].slot_mapping, compressor.compress_ratio)


def write(latent: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, kv_cache: torch.Tensor,
          slot_mapping: torch.Tensor, ratio: int) -> None:
    """latent (rows, 512), not rotated. Only the row of the last of every `ratio` positions is a token; it is rotated by
    the first of these positions."""
    rows = slot_mapping.shape[0]
    flashlatent.append_latent(latent[:rows], None, slot_mapping, kv_cache.unsqueeze(2), positions=positions[:rows],
                              table=table, ratio=ratio, **format_of(kv_cache))
