"""python -m flashlatent.simulate_distributed FILE...: estimates the time on more GPUs from measured parts of a layer.

FILE is what `python -m flashlatent.bench_distributed --json` wrote. For each shape
  decode    is read off the measured local times of its batch and heads over the tokens that a rank holds: by a
            line between the two nearest;
  gathering and exchange  are latency + bytes / bandwidth, fitted to all measured shapes and numbers of GPUs, with
            the bytes that a rank receives, (world - 1) / world of them all.
All ranks are on one host: a network between hosts has another latency and bandwidth.
"""

import argparse
import json
import sys
from collections import defaultdict

from . import _program
from .bench_distributed import DIM, V_DIM


def received(row, world, elements):
    """Bytes of 16-bit elements, and of lse, that a rank receives."""
    each = 2 * elements + (4 if elements == V_DIM else 0)
    return row["b"] * row["s_q"] * row["h_q"] * each * (world - 1) / world


def fitted(points):
    """(a, b) of y = a + b x by least squares, neither negative."""
    n = len(points)
    mean_x, mean_y = (sum(p[i] for p in points) / n for i in (0, 1))
    variance = sum((x - mean_x)**2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / variance if variance else 0.0
    slope = max(slope, 0.0)
    return max(mean_y - slope * mean_x, 0.0), slope


def line_through(points, x):
    """y at x, by the line through the two of the sorted points that are nearest."""
    if len(points) == 1:
        return points[0][1]
    after = next((i for i, point in enumerate(points) if point[0] >= x), len(points) - 1)
    (x0, y0), (x1, y1) = points[max(after, 1) - 1], points[max(after, 1)]
    return max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), 0.0)


class Parts:
    """Estimates parts of other layers from rows of measured ones, with one `exchange`."""

    def __init__(self, rows, way):
        local = defaultdict(dict)
        exchanges, gatherings = [], []
        for row in rows:
            world = row["gpus"]
            tokens = -(-row["s_k"] // world)
            local[row["b"], row["h_q"]][tokens] = row["ms"] if world == 1 else row["local_ms"]
            if world > 1 and row["exchange"] == way:
                gatherings.append((received(row, world, DIM), row["gather_ms"]))
                exchanges.append((received(row, world, V_DIM), row["exchange_ms"]))
        self.local = {key: sorted(points.items()) for key, points in local.items()}
        self.gather, self.exchange = fitted(gatherings), fitted(exchanges)

    def layer_ms(self, row, world):
        """Milliseconds of a layer on so many GPUs."""
        decode = line_through(self.local[row["b"], row["h_q"]], row["s_k"] / world)
        parts = [a + b * received(row, world, elements)
                 for (a, b), elements in ((self.gather, DIM), (self.exchange, V_DIM))]
        return decode + sum(parts)


def simulate(rows, way, worlds):
    """A dictionary a shape: its name, what one GPU takes, and milliseconds by number of GPUs, measured or not."""
    rows = [row for row in rows if "ms" in row]
    parts = Parts(rows, way)
    results = []
    for alone in (row for row in rows if row["gpus"] == 1):
        measured = {row["gpus"]: row["ms"] for row in rows if row["name"] == alone["name"] and row["exchange"] == way}
        simulated = {world: parts.layer_ms(alone, world) for world in [*measured, *worlds]}
        results.append({"name": alone["name"], "exchange": way, "one_gpu_ms": alone["ms"], "measured_ms": measured,
                        "simulated_ms": simulated})
    return results


def table(results):
    """Prints the results, a line a shape."""
    worlds = sorted({world for result in results for world in result["simulated_ms"]})
    print(f"{'shape':20} {'1 GPU us':>9} " + " ".join(f"{f'{world} GPUs':>18}" for world in worlds))
    for result in results:
        cells = []
        for world in worlds:
            ms = result["simulated_ms"][world]
            got = result["measured_ms"].get(world)
            text = f"{ms * 1000:.0f} ({ms / result['one_gpu_ms']:.2f})"
            cells.append(f"{text + ('' if got is None else f' {got * 1000:.0f}'):>18}")
        print(f"{result['name']:20} {result['one_gpu_ms'] * 1000:9.1f} " + " ".join(cells))
    print("simulated us (of one GPU), then measured us where there are any")


def rows_of(path):
    """The measured layers of a file; rows of refused exchanges have no times."""
    expected = "a JSON file of bench_distributed is expected"
    try:
        with open(path) as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise _program.Refused(f"{path}: {error}; {expected}") from None
    rows = document.get("results") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise _program.Refused(f"{path}: has no 'results', a list; {expected}")
    rows = [row for row in rows if not (isinstance(row, dict) and "refused" in row)]
    for i, row in enumerate(rows):
        parts = ("local_ms", "gather_ms", "exchange_ms") if isinstance(row, dict) and row.get("gpus") != 1 else ()
        for field in ("gpus", "b", "s_q", "h_q", "s_k", "ms", *parts):
            value = row.get(field) if isinstance(row, dict) else None
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise _program.Refused(f"{path}: result {i} has no {field}, a positive number; {expected}")
        if not (isinstance(row.get("name"), str) and isinstance(row.get("exchange"), str)):
            raise _program.Refused(f"{path}: result {i} has no name or exchange; {expected}")
    return rows


@_program.named("flashlatent.simulate_distributed")
def main(arguments=None):
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m flashlatent.simulate_distributed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="+")
    parser.add_argument("--gpus", type=_program.counts, default=[8, 16], help="numbers of GPUs")
    parser.add_argument("--exchange", default="all_to_all", help="the way whose exchanges count")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    options = parser.parse_args(arguments)
    if options.json is not None:
        _program.check_writable("--json", options.json)
    rows = [row for path in options.files for row in rows_of(path)]
    if not any(row["gpus"] == 1 for row in rows) or not any(row["exchange"] == options.exchange for row in rows):
        raise _program.Refused(f"--exchange is {options.exchange}, and the files have no times of one GPU, or none of it")
    results = simulate(rows, options.exchange, options.gpus)
    table(results)
    if options.json:
        command = " ".join(["python -m flashlatent.simulate_distributed", *(arguments or sys.argv[1:])])
        _program.write_json("--json", options.json, {"command": command, "results": results})
    return 0


if __name__ == "__main__":
    _program.leave(main)
