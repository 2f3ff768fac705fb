"""Pictures with a row for each case: sparse and paged decode, cache operations, host times; planning times."""

from .style import (COLOURS, MARKERS, axes, even, ladder, machine_of, machines_of, names_down, on, set_axis)


def named_rows(documents, wanted):
    """({name: {machine: row}}, machines); each case is from the first file that has it."""
    found, machines = {}, []
    for document in documents:
        for row in filter(wanted, document["results"]):
            machine = machine_of(document)
            if machine not in machines:
                machines.append(machine)
            found.setdefault(row["name"], {}).setdefault(machine, row)
    return found, machines


def bars(plot, found, machines, value):
    """A bar a case and machine; returns the largest value."""
    height = 0.8 / len(machines)
    largest = 0.0
    for number, machine in enumerate(machines):
        points = [(row, value(rows[machine])) for row, rows in enumerate(found.values()) if machine in rows]
        places = [row - 0.4 + height * (number + 0.5) for row, _ in points]
        plot.barh(places, [x for _, x in points], height=height * 0.9, color=COLOURS[number % len(COLOURS)],
                  label=machine)
        largest = max([largest, *(x for _, x in points)])
    names_down(plot, list(found))
    return largest


def decode_cases(pyplot, documents):
    """Percentages of the roof, and of reading alone, that sparse and paged cases reach; None if there are none."""
    found, machines = named_rows(documents, lambda row: ("topk" in row or "layout" in row) and row.get("roof_pct"))
    if not found:
        return None
    figure, plot = axes(pyplot, 8.4, 1.3 + 0.2 * len(found) * (1 if len(machines) == 1 else 1.4))
    bars(plot, found, machines, lambda row: row["roof_pct"])
    height = 0.8 / len(machines)
    label = "reading alone"
    for number, machine in enumerate(machines):
        for place, rows in enumerate(found.values()):
            row = rows.get(machine)
            if row and row.get("ms_reading"):
                at = place - 0.4 + height * (number + 0.5)
                plot.plot([row["roof_pct"] * row["ms"] / row["ms_reading"]] * 2, [at - height * 0.45, at + height * 0.45],
                          color="#404040", linewidth=1.4, label=label)
                label = None
    for place, rows in enumerate(found.values()):
        text = " / ".join(f"{rows[machine]['ms']:.4g}" for machine in machines if machine in rows)
        plot.text(101, place, f"{text} ms", va="center", fontsize=7)
    set_axis(plot.xaxis, even(0, 100), "of the least time that the roof of the same run allows, %")
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=4)
    plot.set_title(f"Sparse and paged decode {on(machines)}", loc="left", fontsize=10)
    return figure


def cache(pyplot, documents):
    """Rates of cache operations as percentages of a plain copy's; None if no file has them."""
    documents = [document for document in documents if any("copy_pct" in row for row in document["results"])]
    found, machines = {}, machines_of(documents)
    for document in documents:
        for row in document["results"]:
            cold = ", cold" if row.get("cold") else ""
            name = f"{row['name']}: {row['from']} to {row['to']}, {row['tokens']:,} tokens{cold}"
            found.setdefault(name, {}).setdefault(machine_of(document), row)
    if not found:
        return None
    figure, plot = axes(pyplot, 8, 1.3 + 0.22 * len(found) * (1 if len(machines) == 1 else 1.4))
    largest = bars(plot, found, machines, lambda row: row["copy_pct"])
    set_axis(plot.xaxis, even(0, max(largest, 100)), "of a plain copy's rate in the same run, %")
    roofs = {machine_of(document): document.get("roof", {}).get("copy_tbps") for document in reversed(documents)}
    copies = [f"{machine} ({roofs[machine] * 1000:,.0f} GB/s)" if roofs[machine] else machine for machine in machines]
    handles, _ = plot.get_legend_handles_labels()
    figure.legend(handles, copies, frameon=False, fontsize=8, loc="outside lower right", ncols=len(machines),
                  title="a plain copy's rate", title_fontsize=8)
    plot.set_title(f"Cache operations {on(machines)}", loc="left", fontsize=10)
    return figure


def is_planning(row):
    """Is it a time of planning?"""
    return row.get("name", "").startswith("plan b") and "s_k" not in row


def planning(pyplot, documents):
    """Microseconds of planning over requests, a line a machine; None if no file has them."""
    documents = [document for document in documents if any(map(is_planning, document["results"]))]
    if not documents:
        return None
    machines = machines_of(documents)
    figure, plot = axes(pyplot, 6, 3.6)
    points = []
    for number, machine in enumerate(machines):
        line = {}
        for document in documents:
            for row in document["results"]:
                if machine_of(document) == machine and is_planning(row):
                    line.setdefault(row["b"], row["ms"] * 1000)
        line = sorted(line.items())
        points += line
        plot.plot(*zip(*line), color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], markersize=5,
                  linewidth=1.6, label=machine, clip_on=False)
    set_axis(plot.xaxis, ladder(min(points)[0], max(points)[0]), "requests of a batch", log=True)
    set_axis(plot.yaxis, even(0, max(us for _, us in points)), "time of a plan, µs")
    plot.legend(frameon=False, fontsize=8)
    plot.set_title("Planning a step of varied lengths", loc="left", fontsize=10)
    return figure


def host(pyplot, documents):
    """Microseconds that Python is busy with a call, from the least to the most; None if no file has them."""
    found, machines = {}, []
    for document in documents:
        for row in document["results"]:
            if "us" in row and "package" in row:
                machine = f"{machine_of(document)}, {row['device']}"
                if machine not in machines:
                    machines.append(machine)
                found.setdefault(f"{row['name']} ({row['package']})", {}).setdefault(machine, row)
    if not found:
        return None
    figure, plot = axes(pyplot, 8, 1.3 + 0.22 * len(found))
    for number, machine in enumerate(machines):
        points = [(row["us"], place, row["us_min"], row["us_max"]) for place, rows in enumerate(found.values())
                  for of, row in rows.items() if of == machine]
        for _, place, least, most in points:
            plot.plot([least, most], [place, place], color=COLOURS[number % len(COLOURS)], linewidth=1)
        plot.scatter([p[0] for p in points], [p[1] for p in points], color=COLOURS[number % len(COLOURS)],
                     marker=MARKERS[number % len(MARKERS)], s=24, label=machine, zorder=3)
    rows = [row for of in found.values() for row in of.values()]
    set_axis(plot.xaxis, ladder(min(r["us_min"] for r in rows), max(r["us_max"] for r in rows)),
             "host time of a call, µs: median, from the least to the most", log=True)
    names_down(plot, list(found))
    plot.legend(frameon=False, fontsize=8)
    plot.set_title("How long Python is busy with a call", loc="left", fontsize=10)
    return figure
