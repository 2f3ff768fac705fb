"""Hugging Face transformers with absorbed decode from a paged latent cache, for DeepSeek-V2 and V3 architectures.

    import flashlatent.transformers
    model = AutoModelForCausalLM.from_pretrained(..., dtype=torch.bfloat16)
    flashlatent.transformers.enable(model)                    # or kv_format="fp8_656"
    model.generate(**inputs)                                  # left padding, sampling, beams, several sequences
    model.generate_batch(list_of_token_ids)                   # continuous batching
    flashlatent.transformers.disable(model)

On the CPU and on CUDA. Without a cache (training, scoring) an enabled model runs as it did before.
"""

from .. import _needs_torch  # before the others
from ._cache import LatentCache
from ._enable import disable, enable

__all__ = ["LatentCache", "disable", "enable"]
