"""The picture of a plan."""

from collections import defaultdict

from .style import COLOURS, axes, even, set_axis


def unit(plan):
    """(divisor, name) of loads: the CPU's kernels have units of their own, a GPU's have ns."""
    if plan["kernel"] in ("cpu_dense", "reference"):
        return 1, f"load of a part, in units of {plan['kernel']}'s costs"
    return 1000, "load of a part, µs by the table of costs"


def draw(pyplot, plan):
    """A Gantt chart: a row a part, a box a segment, coloured by request, pale where it is a partial result."""
    parts = plan["parts"]
    divisor, name = unit(plan)
    figure, plot = axes(pyplot, 8, min(8, max(2.5, 1 + 0.2 * len(parts))))
    plot.grid(False)
    boxes, longest = defaultdict(list), plan["ideal"]
    for row, part in enumerate(parts):
        at = 0
        for segment in part["segments"]:
            begin, end = segment["blocks"]
            cost = plan["cost_per_split"] + (end - begin) * plan["cost_per_block"]
            boxes[segment["request"] % len(COLOURS), segment["slot"] >= 0].append((row, at / divisor, cost / divisor))
            at += cost
        longest = max(longest, at)
    for (colour, split), members in boxes.items():
        rows, begins, costs = zip(*members)
        plot.barh(rows, costs, left=begins, height=0.86, color=COLOURS[colour], edgecolor="white", linewidth=0.3,
                  alpha=0.55 if split else 1)
    plot.axvline(plan["ideal"] / divisor, color="#404040", linewidth=1, linestyle="--")
    set_axis(plot.xaxis, even(0, longest / divisor), name)
    last = len(parts) - 1
    ticks = [tick for tick in even(0, max(last, 1)) if tick < last] + [last]
    if len(ticks) > 2 and ticks[-1] - ticks[-2] < (ticks[1] - ticks[0]) / 2:
        del ticks[-2]
    plot.set(ylabel="part", ylim=(last + 0.5, -0.5), yticks=ticks, yticklabels=[f"{tick:g}" for tick in ticks])
    plot.set_title(f"{plan['kernel']}: {len(parts)} parts, a colour a request, {plan['slots']} partial results (pale); "
                   f"largest part {plan['imbalance']:.3f} times the ideal (dashed)", loc="left", fontsize=9)
    return figure
