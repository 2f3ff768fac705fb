"""One forward pass over packed tokens: what all layers share, and a layer's attention.

A request with few new tokens is decoded in absorbed form from the cache. One with many, or with nothing cached, is
attended to in expanded form: keys and values are computed from its latents (cached ones are gathered) for torch's SDPA.
"""

import numpy as np
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from .. import _native
from .._typical import rounded


def fewest_expanded(latent, rope, nope, value):
    """From how many new tokens on a request's attention takes fewer operations in expanded form, including the
    expansion of past tokens.

    Operations a (new token, cached token, head): absorbed (latent + rope) + latent, expanded (nope + rope) + value.
    Expansion of a cached token: latent * (nope + value) a head. 171 for DeepSeek-V3.
    """
    saved = (latent + rope + latent) - (nope + rope + value)
    return 1 + latent * (nope + value) // saved if saved > 0 else 1 << 30


class Step:
    """A forward pass: `requests` have new tokens side by side, in order of requests.

    new, past  tokens of each request (lists), new in this pass and cached before it
    slots      int64 (new tokens): their places in the caches
    table      int32 (requests, max_pages) on the device; None where nothing is cached before
    chosen     int64: which of the pass's positions hold the new tokens; None: all, in order
    caches     one array a layer
    """

    def __init__(self, layout, dims, caches, new, past, slots, table, chosen=None):
        self.layout, self.caches, self.slots, self.chosen = layout, caches, slots, chosen
        self.table = table
        self.finished = False  # every layer's tokens are in the cache
        bounds = np.concatenate([[0], np.cumsum(new)]).tolist()
        few = fewest_expanded(layout.latent, layout.rope, *dims)
        self.expanded = [(i, bounds[i], bounds[i + 1], past[i]) for i in range(len(new))
                         if new[i] > 0 and (past[i] == 0 or new[i] >= few)]
        absorbed = [i for i in range(len(new)) if past[i] > 0 and 0 < new[i] < few]
        if absorbed:
            self._set_absorbed(absorbed, new, past, bounds)
        else:
            self.absorbed = None

    def _set_absorbed(self, absorbed, new, past, bounds):
        device = self.layout.device
        lengths = torch.tensor([past[i] + new[i] for i in absorbed], dtype=torch.int32, device=device)
        table = self.table
        if len(absorbed) < len(new):
            table = table[torch.tensor(absorbed, device=device)]
        counts = [new[i] for i in absorbed]
        self.uniform = counts[0] if len(set(counts)) == 1 else 0
        self.options = {"causal": True, "typical_tokens": rounded(max(past[i] + new[i] for i in absorbed))}
        if not self.uniform:
            begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
            self.options |= {"cu_seqlens_q": torch.from_numpy(begins).to(device), "tokens": max(counts)}
        self.rows = None  # which tokens: all
        if sum(counts) < bounds[-1]:
            rows = np.concatenate([np.arange(bounds[i], bounds[i + 1]) for i in absorbed])
            self.rows = torch.from_numpy(rows).to(device)
        self.absorbed = (table, lengths)
        self.step = _native.Step()  # plans at the first layer, for all

    def attend(self, module, query_nope, query_rope, latent, rope):
        """One layer's attention: queries (tokens, heads, nope | rope), latents (tokens, latent), rope (tokens, rope)
        of the new tokens, rotated. Writes these into the cache; returns (tokens, heads, value)."""
        cache = self.caches[module.layer_idx]
        dtype = self.layout.dtype
        _native.append_latent(latent.to(dtype), rope.to(dtype), self.slots, cache)
        self.finished = module.layer_idx == self.layout.layers - 1
        if self.absorbed is not None and self.rows is None:
            return self._absorbed(module, cache, query_nope, query_rope)
        out = query_nope.new_empty(*query_nope.shape[:2], module.v_head_dim)
        for request, begin, end, past in self.expanded:
            part = slice(begin, end)
            latents, ropes = latent[part], rope[part]
            if past:
                latents, ropes = self._with_past(cache, request, past, latents, ropes)
            out[part] = _expanded(module, query_nope[part], query_rope[part], latents, ropes)
        if self.absorbed is not None:
            out[self.rows] = self._absorbed(module, cache, query_nope[self.rows], query_rope[self.rows])
        return out

    def _with_past(self, cache, request, past, latents, ropes):
        """The request's cached tokens, dequantised, before its new ones."""
        table = self.table[request:request + 1]
        begins = torch.tensor([0, past], dtype=torch.int32, device=table.device)
        wanted = "bf16" if self.layout.dtype == torch.bfloat16 else "fp16"
        cached = _native.gather_cache(cache, table, begins, rows=past, format=wanted)[:, 0].to(latents.dtype)
        split = cached.split([self.layout.latent, self.layout.rope], -1)
        return torch.cat([split[0], latents]), torch.cat([split[1], ropes])

    def _absorbed(self, module, cache, query_nope, query_rope):
        key_up, value_up = _up_projections(module)
        latent, rope, dtype = self.layout.latent, self.layout.rope, self.layout.dtype
        query = torch.bmm(query_nope.transpose(0, 1), key_up).transpose(0, 1).to(dtype)
        query_rope = query_rope.to(dtype)
        if (latent, rope) not in ((512, 64), (256, 64)):  # decode() takes no other widths
            whole = query.new_empty(*query.shape[:2], latent + rope)
            whole[..., :latent], whole[..., latent:] = query, query_rope
            query, query_rope = whole, None
        if self.uniform:
            query, query_rope = (None if part is None else part.unflatten(0, (-1, self.uniform))
                                 for part in (query, query_rope))
        out, _ = self.step.decode(query, cache, *self.absorbed, q_rope=query_rope, softmax_scale=module.scaling,
                                  v_dim=latent, **self.options)
        if self.uniform:
            out = out.flatten(0, 1)
        out = out.to(query_nope.dtype)
        return torch.bmm(out.transpose(0, 1), value_up.transpose(1, 2)).transpose(0, 1)


def _up_projections(module):
    """(heads, nope, latent) and (heads, value, latent): kv_b_proj's weight, absorbed into queries and outputs."""
    up = module.kv_b_proj.weight.unflatten(0, (-1, module.qk_nope_head_dim + module.v_head_dim))
    return up.split([module.qk_nope_head_dim, module.v_head_dim], 1)


def _expanded(module, query_nope, query_rope, latents, ropes):
    """Causal attention of a request's last tokens over all its tokens, with keys and values expanded."""
    heads, new, total = query_nope.shape[1], len(query_nope), len(latents)
    up = module.kv_b_proj(latents).unflatten(-1, (heads, -1))
    key_nope, value = up.split([module.qk_nope_head_dim, module.v_head_dim], -1)
    query = torch.cat([query_nope, query_rope], -1)
    key = torch.cat([key_nope, ropes[:, None].expand(-1, heads, -1)], -1)
    mask = None if new == total else causal_lower_right(new, total)
    out = scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (query, key, value)), attn_mask=mask,
                                       is_causal=mask is None and new > 1, scale=module.scaling)
    return out[0].transpose(0, 1)
