"""A batch of DeepSeek V4's and V4.1's attention layers in vLLM and the same in plain float32, on the GPU where there is
one: a window cache, a compressed one, two requests that decode and a prompt."""

from types import SimpleNamespace

import torch

import flashlatent
from vllm_case import DEVICE

HEADS, DIM, WINDOW, SCALE = 6, 512, 128, 512**-0.5
LENGTHS, NEW = [300, 40, 150], [1, 2, 20]  # the last request is a prompt, the others decode
DECODES = 3
FORMATS = {584: {}, 528: dict(kv_format="mxfp8_528", scales="token"), 288: dict(kv_format="nvfp4_288", scales="token")}
ALIGNMENT = {584: 576, 528: 512, 288: 512}  # of vLLM's pages


def empty_cache(pages, page_size, record):
    """vLLM's cache of so many pages, which other layers' pages lie between."""
    page_bytes = -(-page_size * record // ALIGNMENT[record]) * ALIGNMENT[record]
    raw = torch.full((pages, page_bytes + 576), 127, dtype=torch.uint8)
    return raw.as_strided((pages, page_size, record), (page_bytes + 576, record, 1))


def rows_of(cache, table, tokens):
    """float32 (tokens, DIM): what readers see of a request's first tokens; table (1, max_pages)."""
    seen = torch.empty(tokens, 1, DIM, dtype=torch.bfloat16)
    if tokens:
        flashlatent.gather_cache(cache.unsqueeze(2), table, torch.tensor([0, tokens], dtype=torch.int32), out=seen,
                                 **FORMATS[cache.shape[-1]])
    return seen[:, 0].float()


def on_device(cache):
    """The same cache, strides too."""
    whole = cache.as_strided((len(cache), cache.stride(0)), (cache.stride(0), 1))
    return whole.to(DEVICE).as_strided(cache.shape, cache.stride())


def cache_of(lengths, page_size, generator, record=584):
    """(vLLM's cache, block table, each request's rows as a reader sees them)."""
    pages = [-(-n // page_size) for n in lengths]
    cache = empty_cache(sum(pages) + 2, page_size, record)
    table = torch.zeros(len(lengths), max(pages + [1]), dtype=torch.int32)
    numbers, rows = torch.randperm(len(cache), generator=generator).int(), []
    for i, n in enumerate(lengths):
        table[i, :pages[i]] = numbers[sum(pages[:i]):sum(pages[:i + 1])]
        tokens = torch.arange(n)
        slots = table[i, tokens // page_size].long() * page_size + tokens % page_size
        new = torch.randn(n, DIM, generator=generator).bfloat16()
        parts = (new[:, :448], new[:, 448:]) if record == 584 else (new, None)
        flashlatent.append_latent(*parts, slots, cache.unsqueeze(2), **FORMATS[record])
        rows.append(rows_of(cache, table[i:i + 1], n))
    return on_device(cache), table, rows


def in_pages(tokens, request, table, page_size):
    """Slots of a request's tokens, int32 (most), -1 behind them."""
    slots = table[request, tokens // page_size] * page_size + tokens % page_size
    return torch.cat([slots, torch.full((WINDOW - len(slots),), -1)]).int()


def case(layer_class, ratio, *, compressed=True, everything=False, window_page=64, block=256, records=(584, 584)):
    """(layer, window metadata, of compressed tokens (block table, requests, chosen, slots), q, what float32 says).

    compressed: whether the layer has tokens of groups of `ratio`; everything: whether rows attend to all of them.
    """
    from vllm.v1.attention.backends.mla.sparse_swa import DeepseekSparseSWAMetadata

    generator = torch.Generator().manual_seed(5)
    window_cache, window_table, window_rows = cache_of(LENGTHS, window_page, generator, records[0])
    page_size = block // max(ratio, 1)
    cache, table, rows = cache_of([n // ratio if compressed else 0 for n in LENGTHS], page_size, generator, records[1])
    layer = layer_class.__new__(layer_class)
    torch.nn.Module.__init__(layer)
    layer.n_local_heads, layer.padded_heads = HEADS, layer.get_padded_num_q_heads(HEADS)
    layer.prefix, layer.compress_ratio, layer.scale, layer.kv_cache = "layer", ratio, SCALE, cache
    layer.swa_cache_layer = SimpleNamespace(prefix="window", kv_cache=window_cache)
    layer.attn_sink = torch.full((layer.padded_heads,), -float("inf"))
    layer.attn_sink[:HEADS] = torch.linspace(-1, 2, HEADS)
    sink = layer.attn_sink[:HEADS, None]

    requests = torch.repeat_interleave(torch.arange(3), torch.tensor(NEW))
    positions = torch.cat([torch.arange(n - s, n) for n, s in zip(LENGTHS, NEW)])
    q = torch.zeros(len(requests), layer.padded_heads, DIM, dtype=torch.bfloat16)
    q[:, :HEADS] = torch.randn(len(requests), HEADS, DIM, generator=generator)
    windows, counts, chosen, expected = [], [], [], []
    for row, (i, at) in enumerate(zip(requests.tolist(), positions.tolist())):
        tokens = torch.arange(max(0, at + 1 - WINDOW), at + 1)
        windows.append(in_pages(tokens, i, window_table, window_page))
        counts.append(len(tokens))
        there = (at + 1) // ratio if compressed else 0
        some = torch.arange(there) if everything else torch.randperm(there, generator=generator)[:min(there // 2, WINDOW)]
        chosen.append(torch.cat([some, torch.full((WINDOW - len(some),), -1)]).int())
        keys = torch.cat([window_rows[i][tokens], rows[i][some]])
        scores = torch.cat([q[row, :HEADS].float() @ keys.T * SCALE, sink], 1)
        expected.append(scores.softmax(1)[:, :-1] @ keys)
    slots = torch.stack([in_pages(c[c >= 0], i, table, page_size) for i, c in zip(requests, chosen)]).to(DEVICE)
    windows, counts, chosen = (x.to(DEVICE) for x in (torch.stack(windows), torch.tensor(counts).int(),
                                                      torch.stack(chosen)))
    requests, table, window_table = requests.int().to(DEVICE), table.to(DEVICE), window_table.to(DEVICE)
    layer.topk_indices_buffer, layer.attn_sink = chosen, layer.attn_sink.to(DEVICE)
    swa = DeepseekSparseSWAMetadata(
        block_table=window_table, slot_mapping=None, block_size=window_page,
        is_valid_token=torch.ones(len(requests), dtype=torch.bool, device=DEVICE), token_to_req_indices=requests,
        decode_swa_indices=windows[:DECODES, None],
        decode_swa_lens=counts[:DECODES], prefill_swa_indices=windows[DECODES:, None],
        prefill_swa_lens=counts[DECODES:], num_decodes=2, num_prefills=1, num_decode_tokens=DECODES,
        num_prefill_tokens=NEW[-1])
    return layer, swa, (table, requests, chosen, slots), q.to(DEVICE), torch.stack(expected)


def rotation(positions, generator):
    """vLLM's table, and the rotation of the last 64 columns (rows, ..., DIM) by it, or back."""
    angles = torch.rand(positions, 32, generator=generator) * 6
    table = torch.cat([angles.cos(), angles.sin()], 1)

    def rotate(rows, at, back=False):
        even, odd = rows[..., 448::2], rows[..., 449::2]
        cos, sin = (part.to(rows.dtype).view(len(at), *(1,) * (rows.dim() - 2), 32) for part in table[at].split(32, 1))
        sin = -sin if back else sin
        turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
        return torch.cat([rows[..., :448], turned], -1)

    return table, rotate


def run(monkeypatch, vllms_module, layer, metadata, q):
    """vllms_module: that of vLLM's own layer."""
    from flashlatent.vllm import _v4_layer
    for module in (_v4_layer, vllms_module):
        monkeypatch.setattr(module, "get_forward_context", lambda: SimpleNamespace(attn_metadata=metadata))
    out = torch.full_like(q, float("nan"))
    layer.forward_mqa(q, None, torch.zeros(len(q), dtype=torch.int64), out)
    return out[:, :HEADS].float().cpu()
