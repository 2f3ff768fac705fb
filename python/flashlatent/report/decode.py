"""Pictures of decode times: the roofline, time against tokens, ratios to peers and to the best of others."""

import math
from collections import defaultdict

from .style import (COLOURS, LINES, MARKERS, axes, doublings, even, ladder, library_of, machine_of, machines_of, names_down,
                    on, series_name, set_axis, tokens)


def roofline(pyplot, documents):
    """TFLOP/s over FLOP per byte, below the roofs that were measured in the same runs; None if no file has one."""
    documents = [document for document in documents if {"read_tbps", "matmul_tflops"} <= set(document.get("roof", {}))
                 and any(row.get("gbps") and row.get("tflops") for row in document["results"])]
    if not documents:
        return None
    rows = [(machine_of(document), row) for document in documents for row in document["results"] if row.get("gbps")]
    machines = machines_of(documents)
    heads = sorted({row["h_q"] for _, row in rows})
    intensities = [row["tflops"] * 1000 / row["gbps"] for _, row in rows]
    roofs = {machine_of(document): document["roof"] for document in reversed(documents)}  # the first of each machine
    low, high = min(intensities), max(*intensities, *(r["matmul_tflops"] / r["read_tbps"] for r in roofs.values()))
    across = ladder(low, high)
    up = ladder(min(row["tflops"] for _, row in rows),
                max(*(row["tflops"] for _, row in rows), *(r["matmul_tflops"] for r in roofs.values())))
    figure, plot = axes(pyplot, 8.6)
    for number, machine in enumerate(machines):
        read_tbps, matmul = roofs[machine]["read_tbps"], roofs[machine]["matmul_tflops"]
        line = sorted({across[0], min(max(matmul / read_tbps, across[0]), across[-1]), across[-1]})
        plot.plot(line, [min(matmul, read_tbps * x) for x in line], color="#404040", linewidth=1.2,
                  linestyle=LINES[number % len(LINES)], label=f"{machine}: {read_tbps:.2f} TB/s, {matmul:.0f} TFLOP/s")
    for number, machine in enumerate(machines):
        for index, h_q in enumerate(heads):
            points = [row for of, row in rows if of == machine and row["h_q"] == h_q]
            plot.scatter([row["tflops"] * 1000 / row["gbps"] for row in points], [row["tflops"] for row in points],
                         color=COLOURS[index % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], s=20, alpha=0.8,
                         linewidths=0, label=f"{h_q} heads" if number == 0 else None)
    set_axis(plot.xaxis, across, "arithmetic intensity, FLOP per byte", log=True)
    set_axis(plot.yaxis, up, "rate, TFLOP/s", log=True)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    marks = "" if len(machines) == 1 else "; marks: " + ", ".join(
        f"{'circle square diamond triangle'.split()[i % 4]} {machine}" for i, machine in enumerate(machines))
    plot.set_title(f"Decode below the roof of the same run{marks}", loc="left", fontsize=10)
    return figure


def length_series(documents):
    """{(b, s_q, h_q): {library: [(s_k, ms)]}} of cases that were timed at three lengths or more. The library's name
    has the machine's behind it where there are several."""
    panels = defaultdict(lambda: defaultdict(dict))
    machines = machines_of(documents)
    for document in documents:
        for row in document["results"]:
            if (row.get("lengths") == "uniform" and row.get("s_k") and not row.get("batch_invariant") and
                    isinstance(row.get("ms"), float) and "topk" not in row and "gpus" not in row):
                series = panels[row["b"], row["s_q"], row["h_q"]][series_name(document, machines)]
                series.setdefault(row["s_k"], row["ms"])  # from the first file that has the case
    chosen = {}
    for key, libraries in panels.items():
        libraries = {name: sorted(points.items()) for name, points in libraries.items() if len(points) >= 3}
        if libraries:
            chosen[key] = libraries
    return chosen


def times(pyplot, documents, most=9):
    """Milliseconds over tokens, a panel for each batch and head count, first those that most libraries have; None if no
    case was timed at three lengths."""
    panels = sorted(length_series(documents).items(), key=lambda item: (-len(item[1]), item[0]))[:most]
    if not panels:
        return None
    panels.sort()
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, plots = axes(pyplot, 3.6 * columns, 2.9 * rows, nrows=rows, ncols=columns, squeeze=False)
    names = sorted({name for _, libraries in panels for name in libraries},
                   key=lambda name: (not name.startswith("FlashLatent"), name))
    for plot in plots.flat[len(panels):]:
        plot.remove()
    for plot, ((b, s_q, h_q), libraries) in zip(plots.flat, panels):
        for name, points in libraries.items():
            index = names.index(name)
            plot.plot(*zip(*points), color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)],
                      markersize=4, linewidth=1.6, label=name, clip_on=False)
        points = [point for series in libraries.values() for point in series]
        set_axis(plot.xaxis, doublings(min(points)[0], max(points)[0]), "tokens per request", log=True, label=tokens)
        values = [value for _, value in points]
        set_axis(plot.yaxis, ladder(min(values), max(values), most=7), "time of a call, ms", log=True)
        plot.set_title(f"batch {b}, {s_q} query token{'s' * (s_q > 1)}, {h_q} heads", loc="left", fontsize=9)
    handles = {}
    for plot in figure.axes:
        handles.update(zip(*reversed(plot.get_legend_handles_labels())))
    figure.legend([handles[name] for name in names], names, loc="outside upper center", ncols=len(names),
                  frameon=False, fontsize=9)
    return figure


def peer_ratios(documents):
    """{(b, s_q, h_q): {library: [peer's time over FlashLatent's]}} of cases that a peer has on the same machine."""
    own = {}
    for document in documents:
        if library_of(document) == "FlashLatent":
            for row in document["results"]:
                if row.get("ms") and {"name", "h_q"} <= set(row) and "gpus" not in row:
                    own.setdefault((machine_of(document), row["name"].removesuffix(" graph"), row["h_q"]), row["ms"])
    groups = defaultdict(lambda: defaultdict(list))
    for document in documents:
        for row in document["results"] if library_of(document) != "FlashLatent" else ():
            base = row["name"].removesuffix(" graph")
            for name in (base, f"{base} h{row['h_q']}"):  # lists of lengths have their heads behind them
                ms = own.get((machine_of(document), name, row["h_q"]))
                if ms:
                    groups[row["b"], row["s_q"], row["h_q"]][library_of(document)].append(row["ms"] / ms)
                    break
    return groups


def peers(pyplot, documents):
    """Peers' times over FlashLatent's, a dot a case, a row a batch and head count; None if no case has a peer."""
    groups = sorted(peer_ratios(documents).items())
    if not groups:
        return None
    names = sorted({name for _, libraries in groups for name in libraries})
    figure, plot = axes(pyplot, 7.2, 1.2 + 0.22 * len(groups))
    for index, name in enumerate(names, 1):
        points = [(ratio, row) for row, (_, libraries) in enumerate(groups) for ratio in libraries.get(name, ())]
        plot.scatter(*zip(*points), color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)], s=26,
                     alpha=0.85, linewidths=0, label=f"{name}, {len(points)} cases", clip_on=False, zorder=3)
    plot.axvline(1, color=COLOURS[0], linewidth=1.6)
    ratios = [ratio for _, libraries in groups for values in libraries.values() for ratio in values]
    ticks = [value for value in (0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 5, 7, 10)]
    low = max((tick for tick in ticks if tick <= min(*ratios, 1)), default=min(ratios))
    high = min((tick for tick in ticks if tick >= max(*ratios, 1.2)), default=max(ratios))
    set_axis(plot.xaxis, [tick for tick in ticks if low <= tick <= high] if low < high else [low, high],
             "peer's time over FlashLatent's (right of 1: FlashLatent is faster)", log=True)
    names_down(plot, [f"batch {b}, {s_q} query token{'s' * (s_q > 1)}, {h_q} heads" for (b, s_q, h_q), _ in groups])
    plot.legend(frameon=False, fontsize=8, loc="lower right")
    plot.set_title(f"MLA decode {on(machines_of(documents))}, beside peers; a dot a case", loc="left", fontsize=10)
    return figure


def beside_ratios(documents):
    """{kind of case: {peer: [its time over ours]}} of runs of several libraries in one process (scripts/peers)."""
    groups = defaultdict(lambda: defaultdict(list))
    for document in documents:
        for row in document["results"]:
            times = row.get("ms")
            if isinstance(times, dict) and "ours" in times:
                for peer, ms in times.items():
                    if not peer.startswith("ours"):
                        groups[row["name"].split(" ")[0]][peer].append(ms / times["ours"])
    return groups


def beside(pyplot, documents):
    """Peers' times over ours in one process, a dot a case, a row a kind of case; None if no file is of such a run."""
    groups = list(beside_ratios(documents).items())
    if not groups:
        return None
    names = list(dict.fromkeys(name for _, libraries in groups for name in libraries))
    figure, plot = axes(pyplot, 7.2, 1.4 + 0.4 * len(groups))
    for index, name in enumerate(names, 1):
        points = [(ratio, row) for row, (_, libraries) in enumerate(groups) for ratio in libraries.get(name, ())]
        plot.scatter(*zip(*points), color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)], s=26,
                     alpha=0.6, linewidths=0, label=f"{name}, {len(points)} cases", clip_on=False, zorder=3)
    plot.axvline(1, color=COLOURS[0], linewidth=1.6)
    ticks = ladder_near_one([ratio for _, libraries in groups for values in libraries.values() for ratio in values])
    set_axis(plot.xaxis, ticks, "peer's time over ours (right of 1: FlashLatent is faster)", log=True)
    names_down(plot, [kind for kind, _ in groups])
    plot.legend(frameon=False, fontsize=8, loc="best")
    plot.set_title(f"Beside peers, one process {on(machines_of(documents))}; a dot a case", loc="left", fontsize=10)
    return figure


def suites(pyplot, documents):
    """Our time over the fastest peer's, a bar a kind of case: the geometric mean, with the least and the most; None if no
    file is of a run of several libraries in one process."""
    groups = defaultdict(list)
    for document in documents:
        for row in document["results"]:
            times = row.get("ms")
            peers = [ms for peer, ms in times.items() if not peer.startswith("ours")] if isinstance(times, dict) else []
            if peers and "ours" in times:
                groups[row["name"].split(" ")[0]].append(times["ours"] / min(peers))
    if not groups:
        return None
    figure, plot = axes(pyplot, 7.2, 1.4 + 0.4 * len(groups))
    for row, ratios in enumerate(groups.values()):
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        plot.barh(row, mean, height=0.6, color=COLOURS[0])
        plot.plot([min(ratios), max(ratios)], [row, row], color="#404040", linewidth=1.2, marker="|")
        plot.text(0.02, row, f"{mean:.2f}", color="white", va="center", fontsize=8)
    plot.axvline(1, color="#404040", linewidth=1, linestyle="--")
    set_axis(plot.xaxis, even(0, max(1.2, *(max(ratios) for ratios in groups.values()))),
             "our time over the fastest peer's (left of 1: FlashLatent is faster)")
    names_down(plot, [f"{kind} ({len(ratios)})" for kind, ratios in groups.items()])
    plot.set_title(f"Beside peers, one process {on(machines_of(documents))}: geometric mean of the cases; line: least to most",
                   loc="left", fontsize=10)
    return figure


def shapes(pyplot, documents):
    """Our time over the best of others, over the bytes that a call moves; None if no file compares."""
    rows = [(machine_of(document), row) for document in documents for row in document["results"]
            if row.get("ratio") and row.get("gbps")]
    if not rows:
        return None
    kinds = sorted({row.get("kind", "") for _, row in rows})
    machines = list(dict.fromkeys(machine for machine, _ in rows))
    figure, plots = axes(pyplot, 4.6 * len(kinds), 3.8, ncols=len(kinds), sharey=True, squeeze=False)
    counts = sorted({row["s_q"] for _, row in rows})
    up = ladder_near_one([row["ratio"] for _, row in rows])
    for plot, kind in zip(plots.flat, kinds):
        plot.axhline(1, color="#404040", linewidth=1)
        for number, machine in enumerate(machines):
            for index, s_q in enumerate(counts):
                points = [row for of, row in rows if (of, row.get("kind", ""), row["s_q"]) == (machine, kind, s_q)]
                name = f"{s_q} query token{'s' * (s_q > 1)}" + (f", {machine}" if len(machines) > 1 else "")
                plot.scatter([row["gbps"] * row["ms"] for row in points], [row["ratio"] for row in points],
                             color=COLOURS[index % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], s=22, alpha=0.85,
                             linewidths=0, label=name)
        own = [row for _, row in rows if row.get("kind", "") == kind]
        mean = math.exp(sum(math.log(row["ratio"]) for row in own) / len(own))
        sizes = [row["gbps"] * row["ms"] for row in own]
        set_axis(plot.xaxis, ladder(min(sizes), max(sizes), most=7), "memory that a call moves, MB", log=True)
        plot.set_title(f"{kind}: {len(own)} shapes, geometric mean {mean:.3f}", loc="left", fontsize=10)
    set_axis(plots.flat[0].yaxis, up, f"time over the best of others, {on(machines)}", log=True)
    plots.flat[-1].legend(frameon=False, fontsize=8)
    return figure


def ladder_near_one(values):
    """Ticks of an axis of ratios, 1 among them."""
    ticks = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10]
    low = max((tick for tick in ticks if tick <= min(*values, 0.9)), default=min(values))
    high = min((tick for tick in ticks if tick >= max(*values, 1.1)), default=max(values))
    return [low, *(tick for tick in ticks if low < tick < high), high]
