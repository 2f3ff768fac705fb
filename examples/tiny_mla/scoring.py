"""Text through the model with each attention: log-probabilities of given text, and greedy text."""

import contextlib

import torch
from transformers import DynamicCache

import flashlatent.transformers as latent


@contextlib.contextmanager
def attention(model, name, **options):
    """The model with transformers' own attention ('stock') or FlashLatent and a cache format; yields what makes a
    cache."""
    if name == "stock":
        yield lambda: DynamicCache(config=model.config)
        return
    latent.enable(model, kv_format=name, **options)
    try:
        yield lambda: latent.LatentCache(model)
    finally:
        latent.disable(model)


@torch.no_grad()
def forced(model, ids, make_cache, first, chunk, bar=None):
    """Log-probabilities (rows, tokens - 1) that the model gives to each token but the first, all out of the cache:
    `first` tokens in one pass, then `chunk` a pass."""
    cache, parts, begin = make_cache(), [], 0
    while begin < ids.shape[1] - 1:
        end = min(ids.shape[1] - 1, begin + (chunk if begin else first))
        logits = model(ids[:, begin:end], past_key_values=cache).logits.float()
        parts.append(logits.log_softmax(-1).gather(-1, ids[:, begin + 1:end + 1, None])[..., 0])
        if bar is not None:
            bar.update(end - begin)
        begin = end
    return torch.cat(parts, 1)


@torch.no_grad()
def greedy(model, ids, tokens):
    """So many more tokens of each row, as lists."""
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                         do_sample=False, pad_token_id=0)
    return out[:, ids.shape[1]:].tolist()
