"""Index keys in pages, query tokens over them, and their scores in float32, for tests of engines' indexers, on the GPU
where there is one."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEADS, DIM, PAGE = 32, 128, 64


class Keys:
    """A cache of index keys, (pages, PAGE, 132), with a gap between pages, and each request's keys in float32."""

    def __init__(self, lengths, generator, gap):
        pages = [-(-n // PAGE) for n in lengths]
        raw = torch.full((sum(pages) + 2, PAGE * 132 + gap), 127, dtype=torch.uint8)
        numbers = torch.randperm(len(raw), generator=generator).int()
        self.cache = raw.as_strided((len(raw), PAGE, 132), (raw.shape[1], 132, 1))
        self.table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
        self.rows = []
        for i, n in enumerate(lengths):
            self.table[i, :pages[i]] = numbers[sum(pages[:i]):sum(pages[:i + 1])]
            values = torch.randn(n, DIM, generator=generator).to(torch.float8_e4m3fn)
            scales = torch.rand(n, generator=generator) + 0.5
            self.rows.append(values.float() * scales[:, None])
            for token in range(n):
                page, at = raw[self.table[i, token // PAGE]], token % PAGE
                page[at * DIM:(at + 1) * DIM] = values[token].view(torch.uint8)
                page[PAGE * DIM + at * 4:PAGE * DIM + at * 4 + 4] = scales[token:token + 1].view(torch.uint8)
        self.cache = raw.to(DEVICE).as_strided(self.cache.shape, self.cache.stride())


class Batch:
    """Query tokens of requests, and what each sees; ratio: tokens a key."""

    def __init__(self, lengths, new, ratio=1, gap=512):
        generator = torch.Generator().manual_seed(7)
        self.lengths, self.new, self.ratio = lengths, new, ratio
        self.keys = Keys([n // ratio for n in lengths], generator, gap)
        self.sees = [(i, (n - s + t + 1) // ratio) for i, (n, s) in enumerate(zip(lengths, new)) for t in range(s)]
        self.q = torch.randn(len(self.sees), HEADS, DIM, generator=generator).to(torch.float8_e4m3fn).to(DEVICE)
        self.weights = torch.randn(len(self.sees), HEADS, generator=generator).to(DEVICE)

    def scores(self, row):
        request, seen = self.sees[row]
        products = self.q[row].cpu().float() @ self.keys.rows[request][:seen].T
        return self.weights[row].cpu() @ products.relu()


def check_best(scores, chosen, topk):
    """chosen are as many as there are, up to topk, and none that is left out has a higher score."""
    chosen = chosen[chosen >= 0].long()
    assert len(set(chosen.tolist())) == len(chosen) == min(topk, len(scores))
    left = torch.ones(len(scores), dtype=torch.bool)
    left[chosen] = False
    if left.any():
        assert scores[chosen].min() >= scores[left].max() - 1e-3 * scores.abs().max()
