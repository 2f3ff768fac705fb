"""Pictures of checks, of errors by format, and of served traces."""

import os
from collections import defaultdict

from .style import COLOURS, MARKERS, axes, even, ladder, machine_of, machines_of, names_down, on, set_axis

OUTCOMES = {"right": COLOURS[0], "wrong": "#d62728", "refused": COLOURS[9]}


def check(pyplot, documents):
    """Relative errors of a check's cases, a row a kind of case; None if there is no check."""
    documents = [document for document in documents if any("outcome" in row for row in document["results"])]
    if not documents:
        return None
    machines = machines_of(documents)
    groups, counts = defaultdict(list), defaultdict(int)
    for document in documents:
        for row in document["results"]:
            groups[row["name"].split("/")[0]].append(row)
            counts[row["outcome"]] += 1
    figure, plot = axes(pyplot, 7.5, 1.4 + 0.18 * len(groups))
    least = 1e-6  # smaller errors, such as those of exact cases, are drawn here
    for outcome, colour in OUTCOMES.items():
        points = [(max(row.get("relative_error") or 0, least), place) for place, rows in enumerate(groups.values())
                  for row in rows if row["outcome"] == outcome]
        if outcome == "refused":  # no error: at the left edge
            points = [(least, place) for _, place in points]
        if points:
            plot.scatter(*zip(*points), color=colour, marker="|" if outcome == "right" else "x", s=40, linewidths=1.1,
                         alpha=0.6 if outcome == "right" else 1, label=f"{counts[outcome]:,} {outcome}", clip_on=False)
    errors = [row.get("relative_error") or 0 for rows in groups.values() for row in rows]
    set_axis(plot.xaxis, ladder(least, max(max(errors), 1e-2)),
             "relative error of out against float64 (refused: no value)", log=True, label=lambda value: f"{value:.0e}".replace("e-0", "e-"))
    names_down(plot, [f"{name} ({len(rows)})" for name, rows in groups.items()])
    plot.legend(frameon=False, fontsize=8, loc="lower right")
    plot.set_title(f"check {on(machines)}", loc="left", fontsize=10)
    return figure


def numerics(pyplot, documents):
    """The errors of the FP8 cache and of the kernel; None if no file has them."""
    rows = [row for document in documents for row in document["results"] if "cache_error" in row]
    if not rows:
        return None
    figure, plot = axes(pyplot, 8.5, 1.4 + 0.3 * len(rows))
    kinds = (("cache_error", "FP8 cache"), ("kernel_error", "kernel, on the cache's numbers"),
             ("bf16_kernel_error", "kernel, bf16 cache"))
    for index, (key, name) in enumerate(kinds):
        plot.scatter([row[key] for row in rows], range(len(rows)), color=COLOURS[index], marker=MARKERS[index], s=30,
                     label=name, clip_on=False)
    errors = [row[key] for row in rows for key, _ in kinds]
    set_axis(plot.xaxis, ladder(min(errors), max(errors), most=7), "relative error of out against float64", log=True)
    names_down(plot, [f"{row.get('kv', 'fp8_656')}, {row['name']}, scores of deviation {row['score_deviation']:g}" for row in rows])
    figure.legend(frameon=False, fontsize=8, loc="outside lower right", ncols=3)
    plot.set_title("Errors by the cache and by the kernel", loc="left", fontsize=10)
    return figure


def replay_name(document):
    """A replay's name in the picture: trace, model, machine."""
    options = document["options"]
    model = options["model"] if options["model"] != "mla" else f"mla, {options['heads']} heads, {options['kv']}"
    trace = os.path.splitext(os.path.basename(options.get("trace") or "synthetic"))[0]
    return f"{trace}\n{model}\n{machine_of(document)}"


def replay(pyplot, documents):
    """Served traces, a row each: tokens per second, step times, the pool; None if there are none."""
    if not documents:
        return None
    reports = [document["report"] for document in documents]
    figure, plots = axes(pyplot, 11, 1.6 + 0.62 * len(reports), ncols=3, sharey=True)
    rates, steps, pool = plots
    rates.barh(range(len(reports)), [r["tokens_per_second"] for r in reports], height=0.6, color=COLOURS[0])
    set_axis(rates.xaxis, even(0, max(r["tokens_per_second"] for r in reports), most=5), "tokens of decode per second")
    for index, (key, name) in enumerate((("step_ms_p50", "median"), ("step_ms_p99", "99th percentile"),
                                         ("step_ms_max", "longest"))):
        steps.scatter([r[key] for r in reports], range(len(reports)), color=COLOURS[index], marker=MARKERS[index], s=30,
                      label=name, clip_on=False, zorder=3)
    set_axis(steps.xaxis, ladder(min(r["step_ms_p50"] for r in reports), max(r["step_ms_max"] for r in reports), most=6),
             "time of a step, ms", log=True)
    for index, (key, name) in enumerate((("pool_used_mean", "pool in use, mean"), ("pool_used_peak", "pool in use, peak"),
                                         ("prefix_hit_rate", "prefix pages found"))):
        pool.scatter([100 * r[key] for r in reports], range(len(reports)), color=COLOURS[index], marker=MARKERS[index],
                     s=30, label=name, clip_on=False, zorder=3)
    set_axis(pool.xaxis, even(0, 100), "part of the pool, part of the prefix pages, %")
    names_down(rates, [replay_name(document) for document in documents])
    for plot in (steps, pool):
        plot.tick_params(axis="y", length=0, labelleft=False)
        plot.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, columnspacing=0.8,
                    handletextpad=0.2)
    rates.set_title("Served traces", loc="left", fontsize=10)
    return figure
