"""python -m flashlatent.bench_distributed: decode with contexts spread over GPUs, beside one GPU.

A layer gathers the queries of all ranks, decodes the rank's own tokens with all heads, exchanges partial results and
merges them. Each of these is timed in a CUDA graph of several calls, which read different pages, as the layers of a
model do; times are those of the slowest rank. The exchange's time includes the merge; a merge that is a separate launch
is also timed alone. The roof of a layer is the time of reading the rank's tokens at the bandwidth that a sum over
memory reaches, plus the least times of a gathering and an exchange.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from typing import NamedTuple, Optional

from . import _program, info
from .bench import machine

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing

    from .distributed import ContextParallel, _exchange
except ModuleNotFoundError as error:
    missing: Optional[ModuleNotFoundError] = error
else:
    missing = None

PAGE, DIM, V_DIM, SCALE = 64, 576, 512, 192**-0.5
TOKEN_BYTES = 2 * DIM
COLD_BYTES = 400 << 20  # what the calls of a graph read in all, at least: several times the L2 cache
MOST_CALLS = 10
# Calls in a graph of parts that take some microseconds: ranks do not start a graph at once, and its calls share what
# lies between.
PART_CALLS = 40
REPEATS = 7


PARTS = ("gather_ms", "local_ms", "exchange_ms", "merge_ms")


class Shape(NamedTuple):
    """A batch: tokens of each context, query heads of all ranks, requests."""

    tokens: int
    heads: int
    batch: int


class Machine:
    """One rank's process: its cache, and how it times."""

    def __init__(self, rank, world, shapes):
        self.rank, self.world = rank, world
        self.device = torch.device("cuda", rank)
        free, _ = torch.cuda.mem_get_info(self.device)
        needed = max(max(self.pages_of(shape) * shape.batch for shape in shapes),
                     COLD_BYTES // (PAGE * TOKEN_BYTES) * 2)
        self.pages = min(needed, int(free * 0.85) // (PAGE * TOKEN_BYTES))
        self.cache = torch.empty(self.pages, PAGE, 1, DIM, dtype=torch.bfloat16, device=self.device)
        for part in self.cache.split(1 << 14):
            part.normal_()
        self.order = torch.randperm(self.pages, device=self.device, dtype=torch.int32)

    def pages_of(self, shape):
        """Pages of a request on each rank."""
        return -(-shape.tokens // self.world // PAGE)

    def fits(self, shape):
        """Does this rank's cache have room for the batch?"""
        return self.pages_of(shape) * shape.batch <= self.pages

    def tables(self, shape):
        """Page tables for the calls of a graph: with different pages, as far as there are enough."""
        count = self.pages_of(shape) * shape.batch
        calls = max(2, min(MOST_CALLS, COLD_BYTES // (count * PAGE * TOKEN_BYTES) + 1))
        begins = [i * count % max(self.pages - count + 1, 1) for i in range(calls)]
        return [self.order[begin:begin + count].view(shape.batch, -1).contiguous() for begin in begins]

    def slowest(self, value):
        """The largest of the ranks' values."""
        if self.world == 1:
            return value
        times = torch.tensor([value], device=self.device, dtype=torch.float64)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        return times.item()

    def milliseconds(self, calls):
        """The time of one of these calls: the median of some replays of all of them."""
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            calls[0]()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                kept = [call() for call in calls]
            times = []
            for _ in range(REPEATS + 2):
                if self.world > 1:
                    dist.barrier()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record(stream)
                graph.replay()
                end.record(stream)
                end.synchronize()
                times.append(begin.elapsed_time(end) / len(calls))
        del kept
        return self.slowest(statistics.median(times[2:]))

    def read_tbps(self):
        """Bytes read, by a sum over rows of the cache."""
        count = min(self.cache.shape[0], (1 << 30) // (PAGE * TOKEN_BYTES))
        rows = self.cache[:count].view(count, -1).view(torch.int64)
        ms = self.milliseconds([lambda: rows.sum(1)] * 3)
        return count * PAGE * TOKEN_BYTES / ms / 1e9


def parts_of(context, bench, shape, tables):
    """The calls of a layer and of its parts."""
    heads = shape.heads // context.world
    q = torch.randn(shape.batch, 1, heads, DIM, dtype=torch.bfloat16, device=bench.device)
    if context.world > 1:
        q = q.movedim(2, 0).contiguous().movedim(0, 2)  # as a batched product over heads writes it
    lengths = torch.full((shape.batch,), shape.tokens, dtype=torch.int32, device=bench.device)
    plan = context.plan(q, bench.cache, tables[0], lengths)
    inputs = [(bench.cache, table, lengths) for table in tables]
    options = {"softmax_scale": SCALE, "plan": plan}
    calls = {"ms": [lambda i=i: context.decode(q, *i, **options) for i in inputs]}
    if context.world == 1:
        return calls
    gathered = context.gather_queries(q)
    message, sent = context._attend(context._step.decode, gathered, inputs[0], V_DIM, 1, False, options)
    calls["gather_ms"] = [lambda: context.gather_queries(q)] * PART_CALLS
    calls["local_ms"] = [lambda i=i: context._attend(context._step.decode, gathered, i, V_DIM, 1, False, options)
                         for i in inputs]
    calls["exchange_ms"] = [lambda: context._exchanging(message, sent, q, None, False, False, None)()] * PART_CALLS
    if context._peers is None:
        arrived = sent.unflatten(0, (context.world, -1))  # as many messages as arrive, as long
        calls["merge_ms"] = [lambda: _exchange.merge(message, arrived, q, None, None)] * PART_CALLS
    return calls


def measure(rank, world, shapes, ways, store, path):
    """A process's share; rank 0 writes what was found."""
    torch.cuda.set_device(rank)
    if world == 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    else:
        dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world,
                                device_id=torch.device("cuda", rank))
    bench = Machine(rank, world, shapes)
    roof = bench.read_tbps()
    most_rows = max(shape.batch * shape.heads // world for shape in shapes)
    results = []
    for way in ways if world > 1 else ["none"]:
        try:
            context = ContextParallel(exchange="auto" if world == 1 else way, max_rows=most_rows, v_dim=V_DIM)
        except Exception as error:  # peers that cannot write to each other
            results.append({"gpus": world, "exchange": way, "refused": f"{type(error).__name__}: {error}"})
            continue
        for shape in shapes:
            if not bench.fits(shape):
                continue
            calls = parts_of(context, bench, shape, bench.tables(shape))
            row = {"name": f"{shape.batch}x{shape.tokens} h{shape.heads}", "gpus": world, "exchange": way,
                   "b": shape.batch, "s_q": 1, "h_q": shape.heads, "h_kv": 1, "d_qk": DIM, "d_v": V_DIM,
                   "s_k": shape.tokens, "lengths": "uniform", "dtype": "bf16", "kv": "bf16", "page_size": PAGE,
                   "graph": True, "read_tbps": roof}
            row.update({name: bench.milliseconds(list(calls[name])) for name in calls})
            results.append(row)
            if rank == 0:
                print(line_of(row), file=sys.stderr, flush=True)
    if rank == 0:
        with open(path, "w") as file:
            json.dump(results, file)
    dist.destroy_process_group()


def line_of(row):
    """A result as a line of progress."""
    parts = " ".join(f"{name[:-3]} {row[name] * 1000:.1f}" for name in PARTS if name in row)
    return f"{row['gpus']} GPUs {row['exchange']:10} {row['name']:20} {row['ms'] * 1000:9.1f} us  {parts}"


def compare(results):
    """Adds what one GPU takes, and the roof."""
    alone = {row["name"]: row for row in results if row["gpus"] == 1}
    for (gpus, way), rows in itertools.groupby(results, lambda row: (row["gpus"], row["exchange"])):
        rows = [row for row in rows if "ms" in row]
        latency = sum(min((row.get(name, 0) for row in rows), default=0) for name in ("gather_ms", "exchange_ms"))
        for row in rows:
            reading = row["b"] * -(-row["s_k"] // gpus) * TOKEN_BYTES / row["read_tbps"] / 1e9
            row["roof_ms"] = reading + latency
            if gpus > 1 and row["name"] in alone:
                row["one_gpu_ms"] = alone[row["name"]]["ms"]
                row["of_one_gpu"] = row["ms"] / row["one_gpu_ms"]


def table(results):
    """Prints the results, a line each."""
    print(f"{'shape':20} {'GPUs':>4} {'exchange':11} {'layer us':>9} {'gather':>7} {'local':>8} {'exchange':>8} "
          f"{'merge':>6} {'roof us':>8} {'of one GPU':>10}")
    for row in results:
        if "refused" in row:
            print(f"{row['gpus']} GPUs, {row['exchange']}: refused: {row['refused']}")
            continue
        part = [f"{row[name] * 1000:.1f}" if name in row else "" for name in PARTS]
        ratio = f"{row['of_one_gpu']:.3f}" if "of_one_gpu" in row else ""
        print(f"{row['name']:20} {row['gpus']:>4} {row['exchange']:11} {row['ms'] * 1000:9.1f} {part[0]:>7} {part[1]:>8} "
              f"{part[2]:>8} {part[3]:>6} {row['roof_ms'] * 1000:8.1f} {ratio:>10}")


def chart(results, path):
    """Draws times relative to one GPU into a file."""
    from matplotlib import pyplot
    from .report import COLOURS, axes
    names = list(dict.fromkeys(row["name"] for row in results if "of_one_gpu" in row))
    kinds = list(dict.fromkeys((row["gpus"], row["exchange"]) for row in results if "of_one_gpu" in row))
    figure, plot = axes(pyplot, width=1.2 + 0.8 * len(names))
    width = 0.8 / max(len(kinds), 1)
    for i, (gpus, way) in enumerate(kinds):
        of = {row["name"]: row["of_one_gpu"] for row in results if (row["gpus"], row["exchange"]) == (gpus, way)}
        places = [n + (i + 0.5) * width - 0.4 for n, name in enumerate(names) if name in of]
        plot.bar(places, [of[name] for name in names if name in of], width, color=COLOURS[i % len(COLOURS)],
                 label=f"{gpus} GPUs, {way}")
    plot.set_xticks(range(len(names)), names, rotation=45, ha="right")
    plot.set_ylabel("time of a layer, of one GPU's")
    plot.legend(frameon=False)
    figure.savefig(path)


@_program.named("flashlatent.bench_distributed")
def main(arguments=None):
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m flashlatent.bench_distributed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=_program.counts, default=[1, 2, 4], help="of how many; those that are not there are left out")
    parser.add_argument("--tokens", type=_program.counts, default=[131072, 1048576], help="of a context")
    parser.add_argument("--heads", type=_program.counts, default=[16, 128], help="query heads of all ranks")
    parser.add_argument("--batch", type=_program.counts, default=[1, 8, 32])
    parser.add_argument("--exchange", default="auto,all_to_all,all_gather,one_sided", help="ways, one after the other")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--chart", metavar="FILE", help="and a picture there, by matplotlib")
    options = parser.parse_args(arguments)
    if missing is not None:
        raise _program.Refused(f"{missing}; it is needed to measure")
    there = torch.cuda.device_count()
    if there == 0:
        raise _program.Refused("there is no GPU")
    for option, path in (("--json", options.json), ("--chart", options.chart)):
        if path is not None:
            _program.check_writable(option, path)
    # Merges must not need NVLink multicast, which not every machine's switch has.
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    results = []
    document = {"machine": {**machine("cuda"), "gpus": there, "torch": torch.__version__},
                "source_tree": info()["source_tree"],
                "command": " ".join(["python -m flashlatent.bench_distributed", *(arguments or sys.argv[1:])]),
                "results": results}
    for world in sorted(n for n in options.gpus if n <= there):
        shapes = [Shape(*shape) for shape in itertools.product(options.tokens, options.heads, options.batch)
                  if shape[1] % world == 0]
        with tempfile.TemporaryDirectory() as folder:
            store, path = os.path.join(folder, "store"), os.path.join(folder, "results")
            torch.multiprocessing.spawn(measure, (world, shapes, options.exchange.split(","), store, path), world)
            with open(path) as file:
                results += json.load(file)
        compare(results)
        if options.json:  # after each number of GPUs, should the next one fail
            _program.write_json("--json", options.json, document)
    table(results)
    if options.chart:
        chart(results, options.chart)
    return 0


if __name__ == "__main__":
    _program.leave(main)
