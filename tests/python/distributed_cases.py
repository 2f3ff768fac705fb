"""Decode over a process group against float64: python distributed_cases.py WORLD [cpu|cuda [EXCHANGES]]

Each process is a rank; on `cuda` each has a GPU. EXCHANGES: some of ContextParallel's, comma-separated. Prints a line a wrong case, and how many were right; exits 1 if any
was wrong. Started by test_distributed.py.
"""

import functools
import itertools
import math
import multiprocessing
import os
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist

import flashlatent
from flashlatent.distributed import ContextParallel, Interleaving
from flashlatent.torch import append_kv, append_latent, gather_cache, gather_kv

DIMS = {"bf16": (576, 512), "fp16": (576, 512), "fp8_656": (576, 512), "fp8_584": (512, 512), "e4m3": (576, 512)}
PAGE = 16


def query_dtype(kind):
    return torch.float16 if kind == "fp16" else torch.bfloat16


def empty_cache(kind, pages, device):
    """Poison."""
    if kind == "fp8_656":
        return torch.full((pages, PAGE, 1, 656), 0x7F, dtype=torch.uint8, device=device)
    if kind == "fp8_584":
        size = (PAGE * 584 + 575) // 576 * 576
        memory = torch.full((pages, size), 0xFF, dtype=torch.uint8, device=device)
        return memory.as_strided((pages, PAGE, 1, 584), (size, 584, 584, 1))
    if kind == "e4m3":
        return torch.full((pages, PAGE, 1, 576), 0x7F, dtype=torch.uint8, device=device)
    return torch.full((pages, PAGE, 1, 576), math.nan, dtype=query_dtype(kind), device=device)


def tables(lengths, device, generator):
    """A page table for requests of these lengths: pages permuted, garbage after each request's."""
    needed = [-(-length // PAGE) for length in lengths]
    pages = torch.randperm(sum(needed) + 2, generator=generator).to(torch.int32)
    table = torch.full((len(lengths), max(needed + [1]) + 1), 1 << 30, dtype=torch.int32)
    for row, count, begin in zip(table, needed, itertools.accumulate([0] + needed)):
        row[:count] = pages[begin:begin + count]
    return table.to(device), len(pages)


def attend(queries, keys, values, scale, causal, window=0, sink=None, places=None):
    """float64: q (s_q, h, d), keys and values (L, h, d), already of the query heads; `places` (s_q, n): the tokens that
    each query token attends to. Returns (out (s_q, h, d_v), lse (h, s_q))."""
    s_q, length = len(queries), len(keys)
    scores = torch.einsum("thd,lhd->htl", queries, keys) * scale
    ends = torch.arange(length - s_q + 1, length + 1) if causal else torch.full((s_q,), length)
    token = torch.arange(length)
    seen = token < ends[:, None]
    if window:
        seen &= token >= ends[:, None] - window
    if places is not None and length:
        counts = torch.zeros(s_q, length).scatter_add_(1, places.clamp(min=0).long(), (places >= 0).float())
        scores = scores + counts.log()
        seen = counts > 0
    scores = scores.masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, -1) if length else torch.full(scores.shape[:2], -math.inf, dtype=torch.float64)
    weights = torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None])
    out = torch.einsum("htl,lhd->thd", weights, values)
    if sink is not None:
        factor = torch.where(lse == -math.inf, 1.0, 1 / (1 + torch.exp(sink[:, None] - lse)))
        out = out * factor.t()[..., None]
    return out, lse


class Case:
    """A context for every request, the same on all ranks; this rank's tokens in its cache."""

    def __init__(self, context, device, lengths, heads, s_q, ragged, dtype, d, seed):
        self.context, self.device, self.lengths, self.heads = context, device, lengths, heads
        self.generator = torch.Generator().manual_seed(seed)  # the same numbers on all ranks
        self.own_generator = torch.Generator().manual_seed(seed + 1)
        self.tokens = ragged or [s_q] * len(lengths)
        self.ragged = ragged is not None
        all_heads = heads * context.world
        self.queries = [self.random(n, all_heads, d).to(dtype) for n in self.tokens]
        own = slice(context.rank * heads, (context.rank + 1) * heads)
        self.own_heads = own
        whole = torch.cat(self.queries) if self.ragged else torch.stack(self.queries)
        self.q_all = whole.to(device)
        self.q = self.q_all[..., own, :].contiguous()
        self.cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device=device)
        begins = list(itertools.accumulate([0] + self.tokens))
        self.ragged_options = {} if not self.ragged else {
            "cu_seqlens_q": torch.tensor(begins, dtype=torch.int32, device=device), "tokens": max(self.tokens)}

    def random(self, *shape):
        return torch.randn(*shape, generator=self.generator, dtype=torch.float32)

    def places(self):
        """(positions, requests) of all tokens of all contexts, in an order that mixes requests."""
        requests = torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths))
        positions = torch.cat([torch.arange(n) for n in self.lengths]) if self.lengths else requests
        order = torch.randperm(len(requests), generator=self.generator)
        return positions[order].to(self.device), requests[order].to(self.device), order.to(self.device)

    def check(self, out, lse, expected, heads):
        dtype = self.q.dtype
        tolerance = 2**-6 if dtype == torch.bfloat16 else 2**-9  # partial results are rounded to it, too
        out, lse = out.double().cpu(), lse.double().cpu()
        begin = 0
        for i, (want, want_lse) in enumerate(expected):
            n = len(want)
            got = out[begin:begin + n] if self.ragged else out[i]
            begin += n
            torch.testing.assert_close(got, want[:, heads], rtol=tolerance, atol=tolerance)
            on_gpu = self.device.type == "cuda"
            torch.testing.assert_close(lse[i, :, :n], want_lse[heads], rtol=1e-5, atol=2e-3 if on_gpu else 2e-5)
            assert (lse[i, :, n:] == -math.inf).all(), "lse of query tokens that a request does not have"


def latent(context, device, kind, lengths, *, s_q=1, ragged=None, heads=4, causal=True, window=0, sink=False,
           sparse=False, topk=40, all_heads=False, overlap=False, planned=True, seed=0):
    d, v_dim = DIMS[kind]
    case = Case(context, device, lengths, heads, s_q, ragged, query_dtype(kind), d, seed)
    tokens = context.tokens
    rows = case.random(sum(lengths), d).to(query_dtype(kind)).to(device)
    positions, requests, order = case.places()
    parts = (rows, None) if d == 512 and kind != "fp8_584" else (rows[:, :d - 64], rows[:, d - 64:])

    def filled(interleaving):
        table, pages = tables([interleaving.local_lengths(n) for n in lengths], device, case.own_generator)
        cache = empty_cache(kind, pages, device)
        slots = interleaving.slot_mapping(positions, requests, table, PAGE)
        append_latent(*(None if part is None else part[order].contiguous() for part in parts), slots, cache)
        return cache, table

    # What the format keeps of the tokens: a cache of all of them, read back.
    whole, whole_table = filled(Interleaving(0, 1))
    ends = torch.tensor([0] + lengths, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    stored = gather_cache(whole, whole_table, ends, sum(lengths), dtype=query_dtype(kind)).double().cpu()[:, 0]
    contexts = [c[:, None].expand(-1, heads * context.world, -1) for c in stored.split(lengths)]
    cache, table = filled(tokens)
    sinks = case.random(heads * context.world) if sink else None
    scale = d**-0.5
    options = {"softmax_scale": scale, "v_dim": v_dim, "causal": causal, "window": window, **case.ragged_options}
    named = [None] * len(lengths)
    if sparse:
        named = [torch.randint(-1, max(n, 1), (s_q, topk), generator=case.generator) if n else
                 torch.full((s_q, topk), -1) for n in lengths]
        indices, topk_length = tokens.local_indices(torch.stack(named).to(torch.int32).to(device), table, PAGE)
        options.update(indices=indices, topk_length=topk_length, causal=False)
    inputs = (cache, None, None) if sparse else (cache, table, case.cache_seqlens)
    q = case.q_all if all_heads else case.q
    if planned:
        plan_options = {k: v for k, v in options.items() if k != "softmax_scale"}
        options["plan"] = context.plan(q, *inputs, all_heads=all_heads, **plan_options)
    own = slice(None) if all_heads else case.own_heads
    if sink:
        options["attn_sink"] = sinks[own].to(device)
    result = context.decode(q, *inputs, all_heads=all_heads, overlap=overlap, **options)
    out, lse = result.wait() if overlap else result
    expected = [attend(q.double(), keys, keys[..., :v_dim], scale, causal and not sparse, window,
                       None if sinks is None else sinks.double(), where)
                for q, keys, where in zip(case.queries, contexts, named)]
    case.check(out, lse, expected, own)


def key_value(context, device, kind, lengths, *, s_q=1, ragged=None, heads=4, kv_heads=1, d=64, window=0,
              packed=False, overlap=False, seed=0):
    dtype = query_dtype(kind)
    case = Case(context, device, lengths, heads, s_q, ragged, dtype, d, seed)
    # Query heads go with KV heads in order, over all ranks: rank r has some of each KV head's.
    tokens, world = context.tokens, context.world
    keys, values = (case.random(sum(lengths), kv_heads, d).to(dtype).to(device) for _ in range(2))
    positions, requests, order = case.places()
    element = torch.uint8 if kind == "e4m3" else dtype

    def filled(interleaving):
        table, pages = tables([interleaving.local_lengths(n) for n in lengths], device, case.own_generator)
        if packed:
            x = 16 // element.itemsize
            shapes = (pages, kv_heads, d // x, PAGE, x), (pages, kv_heads, d, PAGE)
        else:
            shapes = (pages, PAGE, kv_heads, d), (pages, PAGE, kv_heads, d)
        poison = 0x7F if kind == "e4m3" else math.nan
        caches = [torch.full(shape, poison, dtype=element, device=device) for shape in shapes]
        slots = interleaving.slot_mapping(positions, requests, table, PAGE)
        append_kv(keys[order], values[order], slots, *caches)
        return caches, table

    whole, whole_table = filled(Interleaving(0, 1))
    ends = torch.tensor([0] + lengths, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    stored = gather_kv(*whole, whole_table, ends, sum(lengths), dtype=dtype)
    # Head (rank, KV head, group) of all goes with its KV head.
    of_head = torch.arange(kv_heads).repeat_interleave(heads // kv_heads).repeat(world)
    contexts = [[part[:, of_head] for part in x.double().cpu().split(lengths)] for x in stored]
    caches, table = filled(tokens)
    scale = d**-0.5
    result = context.decode_kv(case.q, *caches, table, case.cache_seqlens, softmax_scale=scale, causal=True,
                               window=window, overlap=overlap, **case.ragged_options)
    out, lse = result.wait() if overlap else result
    expected = [attend(q.double(), k, v, scale, True, window) for q, k, v in zip(case.queries, *contexts)]
    case.check(out, lse, expected, case.own_heads)


def gathering(context, device, dtype, *shape, by_head=False, pieces=1, seed=0):
    """Queries (batch, s_q, h, d) of all ranks, bit by bit. `pieces`: their innermost stride."""
    generator = torch.Generator().manual_seed(seed)
    batch, s_q, heads, d = shape
    whole = torch.randn(batch, s_q, heads * context.world, d, generator=generator).to(dtype).to(device)
    q = whole[:, :, context.rank * heads:(context.rank + 1) * heads]
    if by_head:
        q = q.movedim(2, 0).contiguous().movedim(0, 2)
    if pieces > 1:
        q = torch.stack([q] * pieces, -1)[..., 0]
    for _ in range(3):
        gathered = context.gather_queries(q)
        assert gathered.dtype == dtype and gathered.shape == whole.shape
        assert torch.equal(gathered.contiguous().view(torch.uint8), whole.view(torch.uint8))


def under_way(context, device, seed=0):
    """Calls whose exchange nobody has waited for yet do not disturb those after them."""
    generator = torch.Generator().manual_seed(seed + context.rank)
    table, pages = tables([context.tokens.local_lengths(n) for n in LENGTHS], device, generator)
    cache = torch.randn(pages, PAGE, 1, 576, generator=generator).bfloat16().to(device)
    seqlens = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
    queries = [torch.randn(len(LENGTHS), 1, heads, 576, generator=generator).bfloat16().to(device)
               for heads in (8, 32, 16, 8, 4)]
    decode = functools.partial(context.decode, kv_cache=cache, block_table=table, cache_seqlens=seqlens,
                               softmax_scale=0.07)
    expected = [decode(q) for q in queries]
    for _ in range(10):
        pending = [decode(q, overlap=True) for q in queries[:-1]]
        last = decode(queries[-1])
        for (out, lse), (want, want_lse) in zip([*(p.wait() for p in pending), last], expected):
            assert torch.equal(out, want) and torch.equal(lse, want_lse)


def graph(context, device, lengths, seed=0):
    """A captured call follows the lengths that are in memory when it is replayed."""
    heads = 8
    case = Case(context, device, lengths, heads, 1, None, torch.bfloat16, 576, seed)
    rows = case.random(sum(lengths), 576).bfloat16().to(device)
    positions, requests, order = case.places()
    table, pages = tables([context.tokens.local_lengths(n) for n in lengths], device, case.own_generator)
    cache = empty_cache("bf16", pages, device)
    slots = context.tokens.slot_mapping(positions, requests, table, PAGE)
    append_latent(rows[order][:, :512].contiguous(), rows[order][:, 512:].contiguous(), slots, cache)
    seqlens = case.cache_seqlens
    call = (case.q, cache, table, seqlens)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        context.decode(*call, softmax_scale=0.07, plan=context.plan(*call))
        stream.synchronize()
        captured = torch.cuda.CUDAGraph()
        # NCCL has a thread of its own, which asks for events.
        with torch.cuda.graph(captured, stream=stream, capture_error_mode="thread_local"):
            plan = context.plan(*call)
            results = [context.decode(*call, softmax_scale=0.07, plan=plan) for _ in range(3)]
    torch.cuda.synchronize()
    contexts = [c.double().cpu()[:, None].expand(-1, heads * context.world, -1) for c in rows.split(lengths)]
    for shorter in (0, 3, 40, 0):
        now = [max(n - shorter, 0) for n in lengths]
        seqlens.copy_(torch.tensor(now, dtype=torch.int32))
        captured.replay()
        torch.cuda.synchronize()
        expected = [attend(q.double(), c[:n], c[:n, :, :512], 0.07, False)
                    for q, c, n in zip(case.queries, contexts, now)]
        for out, lse in results:
            case.check(out, lse, expected, case.own_heads)


LENGTHS = [0, 1, 5, 63, 200, 130]


def cases(context, exchange, run, device):
    """(name, call) of those of a context."""
    name = f"{exchange} run {run}"
    for kind in DIMS:
        for s_q in range(1, 5):
            yield f"{name} {kind} s_q {s_q}", lambda k=kind, s=s_q: latent(context, device, k, LENGTHS, s_q=s, seed=s)
        if exchange == "one_sided":
            continue
        yield f"{name} {kind} sparse", lambda k=kind: latent(context, device, k, LENGTHS, s_q=2, sparse=True, seed=7)
        if kind != "fp8_584":
            yield f"{name} {kind} ragged", lambda k=kind: latent(context, device, k, LENGTHS, ragged=[1, 3, 0, 4, 2, 1])
    yield f"{name} one token", lambda: latent(context, device, "bf16", [1])
    yield f"{name} no token", lambda: latent(context, device, "bf16", [0, 0])
    yield f"{name} sink", lambda: latent(context, device, "bf16", LENGTHS, s_q=2, sink=True)
    yield f"{name} overlap", lambda: latent(context, device, "bf16", LENGTHS, s_q=2, overlap=True)
    yield f"{name} not planned", lambda: latent(context, device, "fp16", LENGTHS, planned=False)
    yield f"{name} window", lambda: latent(context, device, "fp8_584", LENGTHS, s_q=3, window=70)
    yield f"{name} all heads", lambda: latent(context, device, "bf16", LENGTHS, s_q=3, all_heads=True)
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        for shape, options in (((1, 1, 8, 576), {}), ((5, 2, 3, 512), {"by_head": True}),
                               ((3, 1, 4, 33), {"pieces": 2}),
                               ((2, 4100, 1, 576), {})):  # the last has more rows than one_sided has room for
            yield (f"{name} gather {dtype} {shape}",
                   lambda t=dtype, s=shape, o=options: gathering(context, device, t, *s, **o))
    yield f"{name} calls under way", lambda: under_way(context, device)
    yield f"{name} many heads", lambda: latent(context, device, "bf16", [700, 3], s_q=1, heads=32)
    if exchange == "one_sided":
        return
    for kind in ("bf16", "fp16", "e4m3"):
        yield f"{name} kv {kind}", lambda k=kind: key_value(context, device, k, LENGTHS, s_q=3)
        yield f"{name} kv heads {kind}", lambda k=kind: key_value(context, device, k, LENGTHS, s_q=2, kv_heads=2)
    yield f"{name} kv window", lambda: key_value(context, device, "bf16", LENGTHS, s_q=4, window=50, overlap=True)
    yield f"{name} kv packed", lambda: key_value(context, device, "bf16", LENGTHS, packed=True)
    yield f"{name} kv ragged", lambda: key_value(context, device, "bf16", LENGTHS, ragged=[1, 3, 0, 4, 2, 1])


def contexts(device, wanted):
    """Each way to exchange with a run of its own."""
    ways = [("all_to_all", 1), ("all_gather", 16), ("auto", 64), ("auto", 3)]
    if device.type == "cuda":
        ways.append(("one_sided", 1))
    for exchange, run in ways:
        if wanted and exchange not in wanted:
            continue
        yield ContextParallel(run=run, exchange=exchange, max_rows=4096), exchange, run


def work(rank, world, kind, wanted, store, failures):
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", init_method=f"file://{store}", rank=rank,
                            world_size=world, **({"device_id": device} if kind == "cuda" else {}))
    right = 0
    for context, exchange, run in contexts(device, wanted):
        for name, call in cases(context, exchange, run, device):
            try:
                call()
                right += 1
            except Exception:  # of one rank: the others go on, and so does it
                failures.put(f"rank {rank} of {world}: {name}: {traceback.format_exc(limit=-2)}")
        if kind == "cuda":
            try:
                graph(context, device, LENGTHS)
                right += 1
            except Exception:
                failures.put(f"rank {rank} of {world}: {exchange} graph: {traceback.format_exc(limit=-2)}")
    failures.put(right)
    dist.destroy_process_group()


def main():
    world, kind = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu"
    wanted = sys.argv[3].split(",") if len(sys.argv) > 3 else None
    forked = multiprocessing.get_context("fork")  # nothing has started a thread
    failures = forked.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [forked.Process(target=work, args=(rank, world, kind, wanted, os.path.join(folder, "store"), failures))
                 for rank in range(world)]
        for rank in ranks:
            rank.start()
        wrong, right, done = 0, 0, 0
        while done < world:
            try:
                found = failures.get(timeout=5)
            except Exception:
                if any(rank.exitcode not in (None, 0) for rank in ranks):
                    print("a rank ended:", [rank.exitcode for rank in ranks])
                    wrong += 1
                    break
                continue
            if isinstance(found, int):
                right, done = right + found, done + 1
            else:
                print(found)
                wrong += 1
        for rank in ranks:
            if wrong:
                rank.terminate()
            rank.join()
    print(f"{world} ranks on {kind}: {right} right, {wrong} wrong")
    sys.exit(1 if wrong or right == 0 else 0)


if __name__ == "__main__":
    main()
