"""python -m flashlatent.report FILE...: pictures of what the program measured, PNG and SVG.

FILE is JSON that `flashlatent bench`, `check`, `replay` or `plan` wrote (--json), or python -m flashlatent.bench and
flashlatent.bench_distributed. All files together give one picture of each kind for which they have data:

  roofline   dense, sparse, paged: rates below the roof of the same run
  time       dense: time against tokens, a line a library (a file may name its "library") and machine
  peers      dense: peers' times over FlashLatent's
  beside     a run of several libraries in one process (scripts/peers): peers' times over FlashLatent's
  suites     the same: FlashLatent's times over the fastest peer's, a bar a kind of case
  cases      sparse, paged: the part of the roof that each case reaches
  shapes     bench shapes: ratios to the best of others
  cache, planning, numerics, host   bench cache, plan, numerics; host times of Python's calls
  steps      examples/engine_bench.py: an engine's steps by attention backend
  distributed  bench_distributed: a layer and its parts by GPUs, as parts of one GPU's time where that is there
  check      relative errors by kind of case
  replay     served traces: rate, step times, pool

and NAME_plan for each schedule; of a document that `python -m flashlatent.report.layout_values` wrote records, pages,
slots, two_caches and ranks. Needs matplotlib.
"""

import argparse
import hashlib
import json
import os
import re
import sys

from . import cases, decode, distributed, engines, layouts, runs, schedule
from .decode import length_series
from .style import COLOURS, axes, machine_of

__all__ = ["COLOURS", "ReportError", "axes", "digest", "digest_in", "length_series", "main", "read", "report"]
KINDS = {"roofline": decode.roofline, "time": decode.times, "peers": decode.peers, "beside": decode.beside, "suites": decode.suites,
         "cases": cases.decode_cases, "shapes": decode.shapes, "cache": cases.cache, "planning": cases.planning,
         "numerics": runs.numerics, "host": cases.host, "steps": engines.steps, "distributed": distributed.layers,
         "check": runs.check}
EXPECTED = "a JSON file of flashlatent bench, check, replay or plan is expected"
NOT_SHOWN = {"source_tree", "command", "machine", "explain", "source"}


class ReportError(Exception):
    """A file that can't be drawn; the message says which and why."""


def is_plan(document):
    """Is it what `flashlatent plan --json` writes?"""
    return "parts" in document


def is_replay(document):
    """Is it what `flashlatent replay --json` writes?"""
    return isinstance(document.get("report"), dict) and isinstance(document.get("options"), dict)


def is_layouts(document):
    """Is it what `python -m flashlatent.report.layout_values` writes?"""
    return "formats" in document


def has_rows(document):
    """Does it have results, a dict each?"""
    rows = document.get("results")
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def read(path):
    """A document that can be drawn."""
    try:
        with open(path) as file:
            document = json.load(file)
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ReportError(f"{path}: {error}; {EXPECTED}") from None
    if not isinstance(document, dict) or not (is_plan(document) or is_replay(document) or is_layouts(document) or
                                              has_rows(document)):
        raise ReportError(f"{path}: has none of 'results', 'report' and 'parts'; {EXPECTED}")
    return document


def digest(documents):
    """A short text that depends on the files' results alone, not on their date and sources. An SVG has it as its
    dc:identifier, which tells whether the picture is of these results without drawing it again."""
    shown = [{key: value for key, value in document.items() if key not in NOT_SHOWN} | {"machine": machine_of(document)}
             for document in documents]
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


def drawn(draw, pyplot, shown, paths, name):
    """The figure; a file whose fields are not those of its kind is refused."""
    try:
        return draw(pyplot, shown)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ReportError(f"{', '.join(paths)}: cannot be drawn as {name}: {type(error).__name__}: {error}; "
                          f"{EXPECTED}") from error


def report(paths, folder, prefix=""):
    """Draws all pictures of these files into `folder`; returns the pictures' paths."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    matplotlib.rcdefaults()  # a user's own settings would give another file
    matplotlib.rcParams.update({"svg.hashsalt": "flashlatent", "svg.fonttype": "path", "font.size": 9,
                                "font.family": "DejaVu Sans"})
    documents = [(path, read(path)) for path in paths]
    os.makedirs(folder, exist_ok=True)
    results = [document for _, document in documents if "results" in document]
    replays = [document for _, document in documents if is_replay(document)]
    figures = [(name, drawn(draw, pyplot, results, paths, name), results) for name, draw in KINDS.items()]
    figures.append(("replay", drawn(runs.replay, pyplot, replays, paths, "replay"), replays))
    for path, document in documents:
        if is_plan(document):
            figures.append((os.path.splitext(os.path.basename(path))[0] + "_plan",
                            drawn(schedule.draw, pyplot, document, [path], "a plan"), [document]))
        if is_layouts(document):
            figures += [(name, drawn(draw, pyplot, document, [path], name), [document])
                        for name, draw in layouts.PICTURES.items()]
    pictures = []
    for name, figure, shown in figures:
        if figure is not None:
            pictures += save(figure, folder, prefix + name, pyplot, shown)
    if not pictures:
        raise ReportError(f"{', '.join(paths)}: nothing to draw; python -m flashlatent.report --help lists what can be")
    return pictures


def main(arguments=None):
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m flashlatent.report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON of flashlatent bench, check, replay or plan")
    parser.add_argument("--out", default=".", metavar="FOLDER", help="where the pictures go; here if left out")
    parser.add_argument("--prefix", default="", help="what their names begin with")
    options = parser.parse_args(arguments)
    try:
        if os.path.basename(options.prefix) != options.prefix:
            raise ReportError(f"--prefix is '{options.prefix}', with a folder in it; --out takes that")
        pictures = report(options.files, options.out, options.prefix)
    except ImportError as error:
        print(f"flashlatent.report: {error}; pip install matplotlib", file=sys.stderr)
        return 2
    except (ReportError, OSError) as error:
        print(f"flashlatent.report: {error}", file=sys.stderr)
        return 2
    print("\n".join(pictures))
    return 0
