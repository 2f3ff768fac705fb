"""Pictures of where tokens lie: records, pages, slots, two caches, ranks. layout_values.py computes their values."""

from .style import COLOURS, axes

PALE = "#e3e3e3"
DARK = "#404040"


def _boxes(plot, y, boxes, height=0.62, size=8):
    """Boxes of a row: (begin, length, colour, text)."""
    for begin, length, colour, text in boxes:
        plot.barh(y, length, left=begin, height=height, color=colour, edgecolor="white",
                  linewidth=0.8 if text else 0.4)
        if text:
            plot.text(begin + length / 2, y, text, ha="center", va="center", fontsize=size, color=DARK)


def _bare(plot, low, high, rows):
    """A plot of boxes, rows from the top, without axes."""
    plot.grid(False)
    plot.set(xlim=(low, high), ylim=(rows - 0.4, -0.6), xticks=[], yticks=[])
    plot.spines[:].set_visible(False)


def _bytes(format):
    """The parts of a record, each (offset, bytes, colour, text); the scales last."""
    scaled = format["dim"] - format["rope_dim"]
    data = scaled if format["elements"] == "e4m3" else scaled // 2
    parts = [(0, data, COLOURS[7], f"{scaled} × {format['elements']}")]
    if format["rope_dim"]:
        parts.append((format["rope_offset"], 2 * format["rope_dim"], COLOURS[3], f"{format['rope_dim']} × bf16"))
    return [*parts, (format["scale_offset"], format["scale_bytes"], COLOURS[1], "")]


def records(pyplot, document):
    """A token of each format with bytes of its own, byte by byte."""
    formats = {format["name"]: format for format in reversed(document["formats"]) if format["token_bytes"]}
    formats = sorted(formats.values(), key=lambda format: -format["token_bytes"])
    figure, plot = axes(pyplot, 8.6, 0.9 + 0.5 * len(formats))
    _bare(plot, -4, 1.3 * formats[0]["token_bytes"], len(formats))
    for row, format in enumerate(formats):
        *data, (at, length, colour, _) = _bytes(format)
        gap = 14 if format["apart"] else 0
        if format["apart"]:
            at = format["data_bytes"] + gap
        _boxes(plot, row, [*data, (at, length, colour, "")])
        where = "behind the page's data" if format["apart"] else "with the token"
        if format["scales"] is not None:
            where += ", or behind the page's data"
        plot.text(format["token_bytes"] + gap + 6, row, f"{format['groups']} × {format['scale_kind']}, {where}", va="center",
                  fontsize=8, color=DARK)
    plot.set_yticks(range(len(formats)), [f"{format['name']}" for format in formats])
    plot.tick_params(axis="y", length=0)
    plot.set_title("A cached token: bytes to scale; elements, the RoPE part in bf16, and scales (yellow)", loc="left",
                   fontsize=10)
    return figure


def pages(pyplot, document):
    """A page in each arrangement of scales."""
    tokens = document["page_tokens"]
    shown = [format for format in document["formats"] if format["name"] in ("fp8_656", "fp8_584", "mxfp8_528")]
    figure, plot = axes(pyplot, 8.6, 0.9 + 0.5 * len(shown))
    ends = []
    for row, format in enumerate(shown):
        scales = tokens * format["data_bytes"]
        end = tokens * format["token_bytes"]
        boxes = []
        for token in range(tokens):
            colour, begin = COLOURS[(7, 3)[token % 2]], token * format["data_bytes"]
            boxes.append((begin, format["data_bytes"], colour, f"token {token}"))
            if format["apart"]:
                boxes.append((scales + token * format["scale_bytes"], format["scale_bytes"], COLOURS[1], ""))
            else:
                boxes.append((begin + format["scale_offset"], format["scale_bytes"], COLOURS[1], ""))
        unit = format["page_unit"]
        stride = (end + unit - 1) // unit * unit
        if stride > end:
            boxes.append((end, stride - end, PALE, "padding"))
        _boxes(plot, row, boxes, size=7)
        ends.append(stride)
    _bare(plot, -20, 1.02 * max(ends), len(shown))
    plot.set_yticks(range(len(shown)), [format["name"] + (f", scales '{format['scales']}'" if format["scales"] else "")
                                        for format in shown])
    plot.tick_params(axis="y", length=0)
    plot.set_title(f"A page of {tokens} tokens: bytes to scale, scales yellow", loc="left", fontsize=10)
    return figure


def slots(pyplot, document):
    """Page tables, slots and indices of two requests in one cache."""
    example = document["slots"]
    size, count = example["page_size"], example["pages"]
    figure, plot = axes(pyplot, 8.6, 3.4)
    plot.grid(False)
    plot.set(xlim=(-0.6, count - 0.4), ylim=(size + 1.6, -1.1), xticks=[], yticks=[])
    plot.spines[:].set_visible(False)
    holds = {slot: (request, token) for request, of_request in enumerate(example["slots"])
             for token, slot in enumerate(of_request)}
    for slot in range(size * count):
        page, offset = divmod(slot, size)
        request, token = holds.get(slot, (None, None))
        chosen = slot in example["indices"]
        plot.add_patch(pyplot.Rectangle((page - 0.44, offset - 0.44), 0.88, 0.88, linewidth=2.4 if chosen else 0.8,
                                        facecolor="#f6f6f6" if request is None else COLOURS[(7, 3)[request]],
                                        edgecolor="#d62728" if chosen else "#bbbbbb"))
        plot.text(page - 0.4, offset + 0.36, slot, ha="left", va="bottom", fontsize=6, color="#606060")
        if request is not None:
            plot.text(page, offset - 0.04, f"token {token}", ha="center", va="center", fontsize=8, color=DARK)
    for page in range(count):
        plot.text(page, -0.6, f"page {page}", ha="center", va="bottom", fontsize=8, color=DARK)
    for request, (row, length) in enumerate(zip(example["block_table"], example["cache_seqlens"])):
        plot.barh(size + 0.1 + 0.5 * request, 0.24, left=-0.44, height=0.3, color=COLOURS[(7, 3)[request]])
        plot.text(-0.1, size + 0.1 + 0.5 * request, f"request {request}: block_table {row}, {length} tokens", va="center",
                  fontsize=8, color=DARK)
    plot.text(-0.44, size + 1.2, f"indices {example['indices']} of request 0 (red): page · {size} + offset; −1 is skipped",
              va="center", fontsize=8, color=DARK)
    plot.set_title(f"A cache of {count} pages of {size} tokens; small numbers are slots", loc="left", fontsize=10)
    return figure


def two_caches(pyplot, document):
    """What a query token attends to with a window cache and an extra cache."""
    example = document["two_caches"]
    tokens, window, ratio, chosen = (example[key] for key in ("tokens", "window", "ratio", "chosen"))
    figure, plot = axes(pyplot, 8.6, 2.5)
    _bare(plot, -0.3, tokens + 8.3, 4)
    _boxes(plot, 0, [(t, 1, COLOURS[7] if t >= tokens - window else PALE, str(t) if t % ratio == 0 else "")
                     for t in range(tokens)], size=7)
    _boxes(plot, 1, [(t * ratio, ratio, COLOURS[3] if t in chosen else PALE, f"{t}") for t in range(tokens // ratio)],
           size=7)
    _boxes(plot, 2.3, [(i * ratio / 2, ratio / 2, COLOURS[3], f"{t}") for i, t in enumerate(chosen)] +
           [(len(chosen) * ratio / 2 + i, 1, COLOURS[7], "") for i in range(window)], size=7)
    for row, text in ((0, "tokens of the request"), (1, f"each {ratio} compressed"), (2.3, "")):
        plot.text(tokens + 0.4, row, text, va="center", fontsize=8, color=DARK)
    plot.text(len(chosen) * ratio / 2 + window + 0.4, 2.3,
              "one softmax: chosen compressed tokens (extra cache) and the window", va="center", fontsize=8, color=DARK)
    plot.set_title(f"Two caches of one request: a window of its last {window} tokens (blue), and an extra cache (green)",
                   loc="left", fontsize=10)
    return figure


def ranks(pyplot, document):
    """Which rank holds a token of a context, and in which slot."""
    example = document["ranks"]
    rank_of, slot_of, world = example["rank_of"], example["slot_of"], example["world"]
    colours = [COLOURS[index] for index in (7, 3, 1, 5)]
    figure, plot = axes(pyplot, 8.6, 1.3 + 0.4 * world)
    _bare(plot, -3.2, len(rank_of) + 0.2, world + 2.2)
    _boxes(plot, 0, [(p, 1, colours[rank % 4], str(p)) for p, rank in enumerate(rank_of)])
    plot.text(-0.2, 0, "place in the context", ha="right", va="center", fontsize=8, color=DARK)
    for slot in range(max(slot_of) + 1):
        plot.text(slot + 0.5, world + 0.95, f"slot {slot}", ha="center", va="center", fontsize=6, color=DARK)
    for rank in range(world):
        held = [(slot_of[p], p) for p in range(len(rank_of)) if rank_of[p] == rank]
        _boxes(plot, rank + 1.4, [(slot, 1, colours[rank % 4], str(p)) for slot, p in held])
        plot.text(-0.2, rank + 1.4, f"rank {rank}", ha="right", va="center", fontsize=8, color=DARK)
    plot.set_title(f"A context over {world} ranks in runs of {example['run']}: a rank's tokens lie in its own pages, in order",
                   loc="left", fontsize=10)
    return figure


PICTURES = {"records": records, "pages": pages, "slots": slots, "two_caches": two_caches, "ranks": ranks}
