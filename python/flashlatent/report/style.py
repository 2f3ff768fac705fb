"""What all pictures have in common: colours, axes whose ends have ticks, names of machines and libraries."""

import math

COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e",
           "#9498a0"]
MARKERS = "osD^vP*X"
LINES = ["-", "--", ":", "-."]


def axes(pyplot, width=7.0, height=4.5, **options):
    """A figure and its plots, with the grid of all pictures; sizes in inches."""
    figure, plots = pyplot.subplots(figsize=(width, height), layout="constrained", **options)
    for plot in figure.axes:
        plot.grid(True, which="major", color="#e3e3e3", linewidth=0.8)
        plot.set_axisbelow(True)
        plot.spines[["top", "right"]].set_visible(False)
    return figure, plots


def ladder(low, high, most=9):
    """Ticks of a log axis, the first not above low and the last not below high: 1, 2, 5, 10, ..., or powers of 10
    where these would be too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1, 2, 5), (1, 3), (1,)):
        values = [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]
        begin = max((i for i, value in enumerate(values) if value <= low * 1.0001), default=0)
        end = min((i for i, value in enumerate(values) if value >= high * 0.9999), default=len(values) - 1)
        ticks = values[begin:end + 1]
        if len(ticks) <= most:
            break
    return ticks if len(ticks) > 1 else [ticks[0], ticks[0] * 10]


def doublings(low, high, most=8):
    """Ticks of an axis of token counts: powers of 2, each some factor above the last."""
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    stride = max(1, math.ceil((last - first) / (most - 1)))
    last = first + max(1, math.ceil((last - first) / stride)) * stride
    return [2.0**power for power in range(first, last + 1, stride)]


def even(low, high, most=6):
    """Ticks of a linear axis from low, with steps of 1, 2 or 5 times a power of 10."""
    raw = (high - low) / (most - 1) or 1
    power = 10.0**math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= raw * 0.9999)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [step * n for n in range(first, last + 1)]


def tokens(value):
    """A count of tokens as a label."""
    return f"{value / 1024:g}K" if value >= 1024 else f"{value:g}"


def set_axis(axis, ticks, name, log=False, label=lambda value: f"{value:,.10g}"):
    """An axis from its first tick to its last one."""
    plot = axis.axes
    letter = axis.axis_name
    getattr(plot, f"set_{letter}scale")("log" if log else "linear")
    axis.set_ticks(ticks, [label(value) for value in ticks])
    axis.set_ticks([], minor=True)
    getattr(plot, f"set_{letter}lim")(ticks[0], ticks[-1])
    getattr(plot, f"set_{letter}label")(name)


def names_down(plot, names):
    """A line of text for each row of a plot of bars, from the top."""
    plot.set_yticks(range(len(names)), names)
    plot.set_ylim(len(names) - 0.4, -0.6)
    plot.tick_params(axis="y", length=0, labelsize=8)
    plot.grid(False, axis="y")


def machine_of(document):
    """The GPU's name, in short, or the processor's."""
    machine = document.get("machine") or {}
    name = machine.get("gpu") or machine.get("host") or "CPU"
    for part in ("NVIDIA ", " HBM3e", " HBM3", " 80GB", "(R)", "(TM)"):
        name = name.replace(part, "")
    return name


def library_of(document):
    """The library whose times a document has."""
    return document.get("library", "FlashLatent")


def machines_of(documents):
    """Those of these documents, each once, in order."""
    return list(dict.fromkeys(map(machine_of, documents)))


def series_name(document, machines):
    """The library, and the machine where there are several."""
    name = library_of(document)
    return name if len(machines) == 1 else f"{name}, {machine_of(document)}"


def on(machines):
    """The end of a title: which machines' times it shows."""
    return "on " + " and ".join(machines)
