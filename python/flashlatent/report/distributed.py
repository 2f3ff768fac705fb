"""The picture of decode over several GPUs."""

from .style import COLOURS, axes, even, machines_of, names_down, on, set_axis

PARTS = (("gather_ms", "queries gathered"), ("local_ms", "decode of own tokens"), ("exchange_ms", "exchange and merge"))


def name_of(row):
    """A row's name in the picture."""
    where = "1 GPU" if row["gpus"] == 1 else f"{row['gpus']} GPUs, {row['exchange']}"
    return f"{row['b']} of {row['s_k']:,} tokens, {row['h_q']} heads: {where}"


def in_one_unit(rows):
    """Rows to draw, the factor of their milliseconds by shape, and the axis' label. Times of shapes differ by factors
    of hundreds: if one GPU was timed for each shape, the other times are drawn as fractions of its time."""
    alone = {row["name"]: row["ms"] for row in rows if row["gpus"] == 1}
    spread = [row for row in rows if row["gpus"] > 1]
    if spread and all(row["name"] in alone for row in spread):
        return spread, {name: 1 / ms for name, ms in alone.items()}, "part of one GPU's time"
    return rows, {row["name"]: 1000 for row in rows}, "time, µs"


def layers(pyplot, documents):
    """A layer's time, and gather, decode and exchange stacked, for each shape and `exchange`; None if no file is of
    python -m flashlatent.bench_distributed."""
    documents = [document for document in documents if any("gpus" in row for row in document["results"])]
    rows = [row for document in documents for row in document["results"] if "gpus" in row and row.get("ms")]
    if not rows:
        return None
    rows, factors, unit = in_one_unit(rows)
    rows.sort(key=lambda row: (row["s_k"], row["h_q"], row["b"], row["gpus"]))
    figure, plot = axes(pyplot, 9, 1.5 + 0.2 * len(rows))
    begin = [0.0] * len(rows)
    for index, (key, name) in enumerate(PARTS):
        widths = [row.get(key, 0) * factors[row["name"]] for row in rows]
        plot.barh(range(len(rows)), widths, left=begin, height=0.75, color=COLOURS[index], label=name)
        begin = [a + b for a, b in zip(begin, widths)]
    layer = [row["ms"] * factors[row["name"]] for row in rows]
    plot.scatter(layer, range(len(rows)), color="#404040", marker="|", s=90, linewidths=2, label="a layer", zorder=3)
    roofs = [(row["roof_ms"] * factors[row["name"]], place) for place, row in enumerate(rows) if row.get("roof_ms")]
    if roofs:
        plot.scatter(*zip(*roofs), color="#d62728", marker="|", s=90, linewidths=1.2, label="its roof", zorder=3)
    set_axis(plot.xaxis, even(0, max(layer + begin)), f"{unit}; parts timed by themselves")
    names_down(plot, list(map(name_of, rows)))
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=5)
    plot.set_title(f"A layer with contexts spread over GPUs, {on(machines_of(documents))}", loc="left", fontsize=10)
    return figure
