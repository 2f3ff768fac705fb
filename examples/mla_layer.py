"""An MLA attention layer (DeepSeek-V2, arXiv 2405.04434; dimensions of V2-Lite) that decodes from a paged latent
cache, and the same layer in plain float32 PyTorch, which expands keys and values. Both get the same weights and
inputs: a prompt, then 64 tokens one by one.

    python examples/mla_layer.py [--device cpu] [--dtype bf16] [--tokens 64]

Absorption: scores are q_nope . (W_uk c) = (W_uk^T q_nope) . c and outputs sum p W_uv c = W_uv (sum p c), so that
attention itself runs on the cached latents c, which all heads share.
"""

import argparse
import sys

import flashlatent

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit("mla_layer: torch is not installed; this example is a torch module")

HIDDEN, HEADS, LATENT, ROPE, NOPE, VALUE = 2048, 16, 512, 64, 128, 128
SCALE = (NOPE + ROPE)**-0.5
PAGE_SIZE = 64


def rotate(x, positions):
    """RoPE over the last dimension of x (batch, tokens, ..., ROPE); positions (batch, tokens)."""
    frequencies = 10000.0**(-torch.arange(0, ROPE, 2, device=x.device) / ROPE)
    angles = positions[..., None].float() * frequencies
    angles = angles.reshape(*positions.shape, *[1] * (x.dim() - 3), ROPE // 2)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()],
                       -1).flatten(-2)


class MlaLayer(nn.Module):
    """The projections, and attention by expanding keys and values."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(HIDDEN, HEADS * (NOPE + ROPE), bias=False)
        self.compress = nn.Linear(HIDDEN, LATENT + ROPE, bias=False)
        self.norm = nn.RMSNorm(LATENT)
        self.expand = nn.Linear(LATENT, HEADS * (NOPE + VALUE), bias=False)
        self.output = nn.Linear(HEADS * VALUE, HIDDEN, bias=False)

    def queries(self, hidden, positions):
        q = self.query(hidden).unflatten(-1, (HEADS, NOPE + ROPE))
        return q[..., :NOPE], rotate(q[..., NOPE:], positions)

    def latents(self, hidden, positions):
        """What a cache holds of each token: (normalised latent, rotated key part that all heads share)."""
        latent, rope = self.compress(hidden).split([LATENT, ROPE], -1)
        return self.norm(latent), rotate(rope, positions)

    def forward(self, hidden):
        """All tokens of one request, (1, tokens, HIDDEN), causally."""
        tokens = hidden.shape[1]
        positions = torch.arange(tokens, device=hidden.device)[None]
        q_nope, q_rope = self.queries(hidden, positions)
        latent, k_rope = self.latents(hidden, positions)
        k_nope, value = self.expand(latent).unflatten(-1, (HEADS, NOPE + VALUE)).split([NOPE, VALUE], -1)
        scores = torch.einsum("bthd,bshd->bhts", q_nope, k_nope) + torch.einsum("bthd,bsd->bhts", q_rope, k_rope)
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=hidden.device).triu(1)
        weights = (scores * SCALE).masked_fill(mask, float("-inf")).softmax(-1)
        return self.output(torch.einsum("bhts,bshd->bthd", weights, value).flatten(-2))


class MlaDecoder:
    """The same layer for serving: a paged cache, prefill by torch, decode by flashlatent."""

    def __init__(self, layer, pages, dtype, device):
        self.layer = layer
        self.pool = flashlatent.PagePool(pages, PAGE_SIZE)
        self.kv_cache = torch.zeros(pages, PAGE_SIZE, 1, LATENT + ROPE, dtype=dtype, device=device)
        up = layer.expand.weight.unflatten(0, (HEADS, NOPE + VALUE))
        self.key_up, self.value_up = up[:, :NOPE], up[:, NOPE:]  # (HEADS, NOPE or VALUE, LATENT)

    def append(self, sequence, latent, rope, first):
        """Writes tokens [first, first + n) of a sequence into its pages."""
        pages = torch.tensor(self.pool.pages(sequence))
        tokens = torch.arange(first, first + len(latent))
        slots = pages[tokens // PAGE_SIZE] * PAGE_SIZE + tokens % PAGE_SIZE
        dtype, device = self.kv_cache.dtype, self.kv_cache.device
        flashlatent.torch.append_latent(latent.to(dtype), rope.to(dtype), slots.to(device), self.kv_cache)

    def prefill(self, hidden):
        """A prompt (tokens, HIDDEN): returns its sequence and its output."""
        sequence, _ = self.pool.create([], length=len(hidden))
        latent, rope = self.layer.latents(hidden[None], torch.arange(len(hidden), device=hidden.device)[None])
        self.append(sequence, latent[0], rope[0], 0)
        return sequence, self.layer(hidden[None])[0]

    def decode(self, batch, hidden):
        """One new token of each sequence, hidden (batch, HIDDEN): returns its output."""
        device = hidden.device
        positions = torch.tensor([[self.pool.length(sequence)] for sequence in batch], device=device)
        latent, rope = self.layer.latents(hidden[:, None], positions)
        for i, sequence in enumerate(batch):
            self.pool.append(sequence)
            self.append(sequence, latent[i], rope[i], int(positions[i]))
        max_pages = max(len(self.pool.pages(sequence)) for sequence in batch)
        block_table, cache_seqlens = map(torch.from_numpy, self.pool.write_page_table(batch, max_pages))

        q_nope, q_rope = self.layer.queries(hidden[:, None], positions)
        q = torch.cat([torch.einsum("bthd,hdl->bthl", q_nope, self.key_up), q_rope], -1).to(self.kv_cache.dtype)
        out, _ = flashlatent.torch.decode(q, self.kv_cache, block_table.to(device), cache_seqlens.to(device),
                                          softmax_scale=SCALE)
        values = torch.einsum("bthl,hvl->bthv", out.float(), self.value_up)
        return self.layer.output(values.flatten(-2))[:, 0]


@torch.no_grad()
def run(device, dtype, tokens, prompts=(100, 37)):
    """The largest error of a decoded token's output, relative to the norm of the plain layer's."""
    torch.manual_seed(0)
    layer = MlaLayer().to(device)
    hidden = [torch.randn(prompt + tokens, HIDDEN, device=device) for prompt in prompts]
    expected = [layer(request[None])[0] for request in hidden]

    decoder = MlaDecoder(layer, sum(-(-len(request) // PAGE_SIZE) for request in hidden), dtype, device)
    batch = [decoder.prefill(request[:prompt])[0] for request, prompt in zip(hidden, prompts)]
    worst = 0.0
    for t in range(tokens):
        out = decoder.decode(batch, torch.stack([request[prompt + t] for request, prompt in zip(hidden, prompts)]))
        for i, prompt in enumerate(prompts):
            wanted = expected[i][prompt + t]
            worst = max(worst, ((out[i] - wanted).norm() / wanted.norm()).item())
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp16"], help="of the cache")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[options.dtype]
    error = run(options.device, dtype, options.tokens)
    print(f"{options.tokens} tokens of 2 requests: largest relative error against the plain layer {error:.1e}")
    # Queries, cache and outputs are rounded to the dtype, by up to 2**-9 (bf16) or 2**-12 (fp16) each.
    return int(error > {"bf16": 2**-7, "fp16": 2**-10}[options.dtype])


if __name__ == "__main__":
    sys.exit(main())
