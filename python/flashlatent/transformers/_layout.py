"""The layout of a model's latent cache: formats and dtypes in one place."""

from typing import Any, NamedTuple

import torch

from .._errors import InvalidArgumentError

# Format: (dtype of the array, bytes per token where it is not the number of elements, dtype of queries or None: any).
FORMATS = {
    "bf16": (torch.bfloat16, None, torch.bfloat16),
    "fp16": (torch.float16, None, torch.float16),
    "fp8_656": (torch.uint8, 656, None),
}


class Layout(NamedTuple):
    """The caches of one model: `layers` arrays (pages, page_size, 1, extent)."""

    kv_format: str
    layers: int
    heads: int
    latent: int  # NoPE elements of a token
    rope: int
    page_size: int
    dtype: torch.dtype  # of queries and of new latents
    storage: torch.dtype  # of the arrays
    extent: int
    device: Any

    def arrays(self, pages):
        """New caches; pages hold no tokens yet."""
        shape = (pages, self.page_size, 1, self.extent)
        return [torch.empty(shape, dtype=self.storage, device=self.device) for _ in range(self.layers)]

    @property
    def token_bytes(self):
        """Bytes of a token in one layer."""
        return self.extent * self.storage.itemsize


def layout_of(config, dtype, device, kv_format, page_size):
    """The Layout of a model with this configuration, dtype and device; kv_format None is the model's dtype."""
    own = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype)
    if kv_format is None:
        if own is None:
            raise InvalidArgumentError(f"model.dtype is {dtype}; kv_format={', '.join(map(repr, FORMATS))} says what "
                                       "the cache is to be, or load the model with dtype=torch.bfloat16 or "
                                       "torch.float16")
        kv_format = own
    if not isinstance(kv_format, str) or kv_format not in FORMATS:
        known = "; 'fp8_ds_mla' is fp8_656 here" if kv_format == "fp8_ds_mla" else ""
        raise InvalidArgumentError(f"kv_format is {kv_format!r}; {', '.join(map(repr, FORMATS))} or None (the model's "
                                   "dtype) is expected" + known)
    storage, extent, queries = FORMATS[kv_format]
    latent, rope = config.kv_lora_rank, config.qk_rope_head_dim
    if kv_format == "fp8_656" and (latent, rope) != (512, 64):
        raise InvalidArgumentError(f"kv_format is 'fp8_656' and the model's kv_lora_rank + qk_rope_head_dim is "
                                   f"{latent} + {rope}; this format holds 512 + 64: use 'bf16' or 'fp16'")
    if isinstance(page_size, bool) or not isinstance(page_size, int) or not 1 <= page_size <= 1 << 20:
        raise InvalidArgumentError(f"page_size is {page_size!r}; 1 to {1 << 20} is expected")
    if queries is None:
        queries = dtype if own else torch.bfloat16
    return Layout(kv_format, config.num_hidden_layers, config.num_attention_heads, latent, rope, page_size, queries,
                  storage, latent + rope if extent is None else extent, device)
