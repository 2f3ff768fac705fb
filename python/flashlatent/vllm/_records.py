"""This package's names for the records of DeepSeek V4's and V4.1's caches in vLLM."""

from typing import Dict

import torch

_FORMATS = {528: "mxfp8_528", 288: "nvfp4_288"}  # by bytes per token; 584 needs no name


def format_of(cache: torch.Tensor) -> Dict[str, str]:
    """kv_format and scales, arguments of append_latent() and decode(). vLLM puts a token's scales behind its data."""
    name = _FORMATS.get(cache.shape[-1])
    return {} if name is None else dict(kv_format=name, scales="token")
