"""The picture of an engine's steps with several attention backends (examples/engine_bench.py)."""

import math
from collections import defaultdict

from .style import COLOURS, axes, even, machines_of, names_down, on, set_axis

OURS = "flashlatent"


def step_ratios(documents):
    """{(heads, backend): [our GPU time per step over that backend's]}, a ratio a batch and context."""
    steps = defaultdict(dict)
    for document in documents:
        for row in document["results"]:
            if isinstance(row.get("gpu_ms_per_step"), float):
                case = row["heads"], row["batch"], row["context"], row.get("layers"), row.get("kv_cache_dtype")
                steps[case][row["backend"]] = row["gpu_ms_per_step"]
    ratios = defaultdict(list)
    for (heads, *_), times in sorted(steps.items(), key=lambda item: item[0][0]):
        for backend, ms in times.items():
            if backend != OURS and OURS in times:
                ratios[heads, backend].append(times[OURS] / ms)
    return ratios


def steps(pyplot, documents):
    """A bar a number of heads and backend: the geometric mean, the least and the most; None if no file has steps."""
    ratios = step_ratios(documents)
    if not ratios:
        return None
    backends = list(dict.fromkeys(backend for _, backend in ratios))
    figure, plot = axes(pyplot, 7.2, 1.3 + 0.26 * len(ratios))
    for row, ((_, backend), values) in enumerate(ratios.items()):
        mean = math.exp(sum(map(math.log, values)) / len(values))
        plot.barh(row, mean, height=0.66, color=COLOURS[backends.index(backend) % len(COLOURS)])
        plot.plot([min(values), max(values)], [row, row], color="#404040", linewidth=1.2, marker="|")
        plot.text(0.02, row, f"{mean:.2f}", va="center", fontsize=8)
    plot.axvline(1, color="#404040", linewidth=1, linestyle="--")
    set_axis(plot.xaxis, even(0, max(1.2, *(max(values) for values in ratios.values()))),
             "our GPU time per step over the backend's (left of 1: FlashLatent is faster)")
    names_down(plot, [f"{heads} heads, {backend}" for heads, backend in ratios])
    plot.set_title(f"Decode steps {on(machines_of(documents))}: geometric mean; line: least to most", loc="left",
                   fontsize=10)
    return figure
