"""python -m flashlatent.report FILE...: pictures of benchmarks and plans, PNG and SVG.

FILE is what `flashlatent bench ... --json` or `flashlatent plan ... --json` wrote. Of all bench files together it
draws the roofline (those that measured their roof) and time against s_k (a line a library; a file may name its
"library"), of `bench shapes` each shape's ratio to the best of others over its bytes, of each plan a Gantt chart. Needs matplotlib: pip install flashlatent[report].
"""

import argparse
import hashlib
import json
import math
import os
import re
import sys
from collections import defaultdict

COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e",
           "#9498a0"]
MARKERS = "osD^vP*X"


class ReportError(Exception):
    """A file that can't be drawn; the message says which and why."""


def read(path):
    """A bench or plan document."""
    try:
        with open(path) as file:
            document = json.load(file)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ReportError(f"{path}: {error}; a JSON file of flashlatent bench or plan is expected") from None
    if not isinstance(document, dict) or not ("parts" in document or isinstance(document.get("results"), list)):
        raise ReportError(f"{path}: has neither 'results' nor 'parts'; a JSON file of flashlatent bench or plan is "
                          "expected")
    return document


def library_of(document):
    return document.get("library", "FlashLatent")


def axes(pyplot, width=7.0, height=4.5, **options):
    figure, plots = pyplot.subplots(figsize=(width, height), layout="constrained", **options)
    for plot in figure.axes:
        plot.grid(True, which="major", color="#e3e3e3", linewidth=0.8)
        plot.set_axisbelow(True)
        plot.spines[["top", "right"]].set_visible(False)
    return figure, plots


def plain_ticks(axis, ticker):
    """1, 2, 5, 10, ... as they are, where a log axis would write powers."""
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(ticker.NullLocator())


def draw_roofline(pyplot, documents):
    """TFLOP/s over FLOP a byte, below the roof that was measured in the same run; None if no file has one."""
    documents = [document for document in documents if "roof" in document and
                 any(row.get("gbps") and row.get("tflops") for row in document["results"])]
    if not documents:
        return None
    figure, plot = axes(pyplot)
    heads = sorted({row["h_q"] for document in documents for row in document["results"] if row.get("gbps")})
    intensities = [row["tflops"] * 1000 / row["gbps"] for document in documents for row in document["results"]
                   if row.get("gbps")]
    low, high = min(intensities) / 1.5, max(intensities) * 1.5
    for number, document in enumerate(documents):
        read_tbps, matmul = document["roof"]["read_tbps"], document["roof"]["matmul_tflops"]
        ridge = matmul / read_tbps
        line = [x for x in (low, ridge, max(high, ridge * 1.2)) if x >= low]
        gpu = (document.get("machine") or {}).get("gpu") or "CPU"
        label = f"{gpu}: {read_tbps:.2f} TB/s, {matmul:.0f} TFLOP/s" if number == 0 else None
        plot.plot(line, [min(matmul, read_tbps * x) for x in line], color="#404040", linewidth=1.2,
                  alpha=1 if number == 0 else 0.3, label=label)
    for index, h_q in enumerate(heads):
        rows = [row for document in documents for row in document["results"] if row.get("gbps") and row["h_q"] == h_q]
        plot.scatter([row["tflops"] * 1000 / row["gbps"] for row in rows], [row["tflops"] for row in rows],
                     color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)], s=22, alpha=0.85,
                     linewidths=0, label=f"{h_q} heads")
    plot.set(xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="TFLOP/s")
    for axis in (plot.xaxis, plot.yaxis):
        plain_ticks(axis, pyplot.matplotlib.ticker)
    plot.legend(frameon=False, fontsize=8)
    plot.set_title("Decode below the roof measured in the same run", loc="left", fontsize=10)
    return figure


def length_series(documents):
    """{(b, s_q, h_q): {library: [(s_k, ms)]}} of cases that were timed at three lengths or more."""
    panels = defaultdict(lambda: defaultdict(dict))
    for document in documents:
        for row in document["results"]:
            if row.get("lengths") == "uniform" and row.get("s_k") and not row.get("batch_invariant"):
                series = panels[row["b"], row["s_q"], row["h_q"]][library_of(document)]
                series.setdefault(row["s_k"], row["ms"])  # of several files the first that has it
    chosen = {}
    for key, libraries in panels.items():
        libraries = {name: sorted(points.items()) for name, points in libraries.items() if len(points) >= 3}
        if libraries:
            chosen[key] = libraries
    return chosen


def draw_times(pyplot, documents, most=9):
    """Milliseconds over s_k, a panel a batch and head count, those first that most libraries have; None if no case
    was timed at three lengths."""
    panels = sorted(length_series(documents).items(), key=lambda item: (-len(item[1]), item[0]))[:most]
    if not panels:
        return None
    panels.sort()
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, plots = axes(pyplot, 3.6 * columns, 2.9 * rows, nrows=rows, ncols=columns, squeeze=False)
    names = sorted({name for _, libraries in panels for name in libraries},
                   key=lambda name: (name != "FlashLatent", name))
    for plot in plots.flat[len(panels):]:
        plot.remove()
    for plot, ((b, s_q, h_q), libraries) in zip(plots.flat, panels):
        for name, points in libraries.items():
            index = names.index(name)
            plot.plot(*zip(*points), color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)],
                      markersize=4, linewidth=1.6, label=name)
        plot.set(xscale="log", yscale="log", xlabel="s_k", ylabel="ms")
        plot.xaxis.set_major_locator(pyplot.matplotlib.ticker.LogLocator(base=4))
        plot.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:g}K" if x >= 1024 else f"{x:g}")
        plot.xaxis.set_minor_locator(pyplot.matplotlib.ticker.NullLocator())
        plain_ticks(plot.yaxis, pyplot.matplotlib.ticker)
        plot.set_title(f"batch {b}, s_q {s_q}, {h_q} heads", loc="left", fontsize=9)
    handles = {}
    for plot in figure.axes:
        handles.update(zip(*reversed(plot.get_legend_handles_labels())))
    figure.legend([handles[name] for name in names], names, loc="outside upper center", ncols=len(names),
                  frameon=False, fontsize=9)
    return figure


def draw_shapes(pyplot, documents):
    """Our time over the best of others, over the bytes that a call moves; None if no file compares."""
    rows = [row for document in documents for row in document["results"] if row.get("ratio") and row.get("gbps")]
    if not rows:
        return None
    kinds = sorted({row.get("kind", "") for row in rows})
    figure, plots = axes(pyplot, 4.6 * len(kinds), 3.8, ncols=len(kinds), sharey=True, squeeze=False)
    tokens = sorted({row["s_q"] for row in rows})
    for plot, kind in zip(plots.flat, kinds):
        plot.axhline(1, color="#404040", linewidth=1)
        for index, s_q in enumerate(tokens):
            points = [row for row in rows if row.get("kind", "") == kind and row["s_q"] == s_q]
            plot.scatter([row["gbps"] * row["ms"] for row in points], [row["ratio"] for row in points],
                         color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)], s=22, alpha=0.85,
                         linewidths=0, label=f"s_q {s_q}")
        ratios = [row["ratio"] for row in rows if row.get("kind", "") == kind]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        plot.set(xscale="log", xlabel="MB a call")
        plot.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        plot.xaxis.set_minor_locator(pyplot.matplotlib.ticker.NullLocator())
        plot.set_title(f"{kind}: {len(ratios)} shapes, geometric mean {mean:.3f}", loc="left", fontsize=10)
    plots.flat[0].set_ylabel("time over the best of others")
    plots.flat[-1].legend(frameon=False, fontsize=8)
    return figure


def draw_plan(pyplot, plan):
    """A Gantt chart: a row a part, a box a segment, coloured by request, pale where it is a partial result."""
    parts = plan["parts"]
    figure, plot = axes(pyplot, 8, min(8, max(2.5, 1 + 0.2 * len(parts))))
    plot.grid(False)
    boxes = defaultdict(list)
    for row, part in enumerate(parts):
        at = 0
        for segment in part["segments"]:
            begin, end = segment["blocks"]
            cost = plan["cost_per_split"] + (end - begin) * plan["cost_per_block"]
            boxes[segment["request"] % len(COLOURS), segment["slot"] >= 0].append((row, at, cost))
            at += cost
    for (colour, split), members in boxes.items():
        rows, begins, costs = zip(*members)
        plot.barh(rows, costs, left=begins, height=0.86, color=COLOURS[colour], edgecolor="white", linewidth=0.3,
                  alpha=0.55 if split else 1)
    plot.axvline(plan["ideal"], color="#404040", linewidth=1, linestyle="--")
    plot.set(xlabel="load (ns on an H200; units of its own on the CPU)", ylabel="part", ylim=(len(parts) - 0.5, -0.5))
    plot.set_title(f"{plan['kernel']}: {len(parts)} parts, {plan['slots']} partial results (pale), largest "
                   f"{plan['imbalance']:.3f} times the ideal (dashed)", loc="left", fontsize=10)
    return figure


def digest(documents):
    """A short text that depends only on the results a picture of these files shows. An SVG has it as its
    dc:identifier, by which a picture of older results is recognised without drawing it again."""
    shown = []
    for document in documents:
        if "parts" in document:
            shown.append({key: document[key] for key in
                          ("kernel", "cost_per_block", "cost_per_split", "ideal", "imbalance", "slots", "parts")})
            continue
        rows = [{key: row.get(key) for key in
                 ("b", "s_q", "h_q", "s_k", "lengths", "batch_invariant", "ms", "tflops", "gbps")}
                | ({"kind": row.get("kind"), "ratio": row["ratio"]} if "ratio" in row else {})
                for row in document["results"]]
        gpu = (document.get("machine") or {}).get("gpu")
        shown.append({"library": library_of(document), "gpu": gpu, "roof": document.get("roof"), "results": rows})
    text = json.dumps(shown, sort_keys=True, separators=(",", ":"))
    return "flashlatent-data:" + hashlib.sha256(text.encode()).hexdigest()[:32]


def digest_in(svg):
    """The digest in an SVG's text, or None."""
    found = re.search(r"<dc:identifier>(flashlatent-data:[0-9a-f]+)</dc:identifier>", svg)
    return found[1] if found else None


def save(figure, folder, name, pyplot, documents):
    """Writes NAME.png and NAME.svg; returns their paths."""
    paths = [os.path.join(folder, f"{name}.{ending}") for ending in ("png", "svg")]
    for path in paths:
        # Without a date and matplotlib's version in it the same data gives the same file.
        metadata = {"Date": None, "Creator": None, "Identifier": digest(documents)}
        figure.savefig(path, dpi=144, metadata=metadata if path.endswith("svg") else {"Software": None})
    pyplot.close(figure)
    return paths


def report(paths, folder, prefix=""):
    """Draws all that these files have to show into `folder`; returns the pictures' paths."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    import matplotlib.ticker
    matplotlib.rcdefaults()  # a user's own settings would give another file
    matplotlib.rcParams.update({"svg.hashsalt": "flashlatent", "svg.fonttype": "path", "font.size": 9,
                                "font.family": "DejaVu Sans"})
    os.makedirs(folder, exist_ok=True)
    documents = [(path, read(path)) for path in paths]
    benches = [document for _, document in documents if "results" in document]
    figures = [("roofline", draw_roofline(pyplot, benches), benches), ("time", draw_times(pyplot, benches), benches),
               ("shapes", draw_shapes(pyplot, benches), benches)]
    for path, document in documents:
        if "parts" in document:
            figures.append((os.path.splitext(os.path.basename(path))[0] + "_plan", draw_plan(pyplot, document),
                            [document]))
    pictures = []
    for name, figure, drawn in figures:
        if figure is not None:
            pictures += save(figure, folder, prefix + name, pyplot, drawn)
    if not pictures:
        raise ReportError(f"{', '.join(paths)}: nothing to draw: no roof, no case at three lengths, no ratio, no plan")
    return pictures


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m flashlatent.report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON of flashlatent bench or plan")
    parser.add_argument("--out", default=".", metavar="FOLDER", help="where the pictures go; here if left out")
    parser.add_argument("--prefix", default="", help="what their names begin with")
    options = parser.parse_args(arguments)
    try:
        for picture in report(options.files, options.out, options.prefix):
            print(picture)
    except ImportError as error:
        print(f"flashlatent.report: {error}; pip install flashlatent[report]", file=sys.stderr)
        return 2
    except (ReportError, OSError) as error:
        print(f"flashlatent.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
