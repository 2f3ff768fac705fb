"""What copy and pickle do with the classes of the extension module: a Problem is a value; the other classes refuse, and
say what to do instead."""

from . import _native
from ._arguments import parameters
from ._errors import ArgumentTypeError

INSTEAD = {
    "Plan": "it holds a schedule and memory of one device; Plan(plan.problem, device=...) makes another, and a Problem "
            "can be pickled",
    "Step": "it holds plans of this process; make a new Step() where one is needed: its plans are made by its first "
            "calls",
    "PagePool": "it counts the owners of one cache's pages; fork() shares a sequence's pages within the pool, and "
                "write_page_table() gives arrays that can be passed on",
    "Sequence": "it is the handle of a sequence in one PagePool; fork() makes another of the same pages",
}


def refuse(name, instead):
    """A __reduce_ex__() that raises: copy, deepcopy and pickle all call it."""

    def __reduce_ex__(self, protocol):
        raise ArgumentTypeError(f"{name} can be neither copied nor pickled: {instead}")

    return __reduce_ex__


def _problem(fields):
    return _native.Problem(**fields)


def _reduce_problem(problem):
    return _problem, ({parameter.name: getattr(problem, parameter.name) for parameter in parameters(_native._Problem)},)


def install():
    """Gives the classes their methods for copy and pickle."""
    _native.Problem.__reduce__ = _reduce_problem
    for name, instead in INSTEAD.items():
        getattr(_native, name).__reduce_ex__ = refuse(f"flashlatent.{name}", instead)
