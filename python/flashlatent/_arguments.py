"""Errors for calls that the extension module does not take: they name the argument, its value and what would do."""

import difflib
import operator
import re
from typing import NamedTuple, Optional

from . import _native
from ._errors import ArgumentTypeError


class Parameter(NamedTuple):
    """A parameter of a function of the extension module, from its signature."""

    name: str
    annotation: str  # "object", "int", "str | None", ...
    required: bool
    keyword_only: bool


def parameters(function):
    """The parameters of a function of one signature, without self."""
    signature = function.__nb_signature__[0][0]
    text = signature[signature.index("(") + 1:signature.rindex(")")]
    found, keyword_only = [], False
    for item in re.split(r", (?![^\[]*\])", text):
        if item in ("*", "/"):
            keyword_only |= item == "*"
            continue
        declared, _, default = item.partition(" = ")
        name, _, annotation = declared.partition(": ")
        if name != "self":
            found.append(Parameter(name, annotation, not default, keyword_only))
    return found


def _is_int(value):
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _is_number(value):
    return not isinstance(value, (str, bytes)) and hasattr(type(value), "__float__") or _is_int(value)


def _expected(annotation, value) -> Optional[str]:
    """What would do in place of this value; None where it fits."""
    kinds = annotation.split(" | ")
    if "None" in kinds:
        if value is None:
            return None
        kinds.remove("None")
    kind = kinds[0]
    if kind == "object":
        return "an array is expected" if value is None else None
    if kind == "bool":
        return None if isinstance(value, bool) else "True or False is expected"
    if kind == "int":
        if not _is_int(value):
            return "an integer is expected"
        return None if -2**31 <= operator.index(value) < 2**31 else "an integer of 32 bits is expected"
    if kind == "float":
        return None if _is_number(value) else "a number is expected"
    if kind == "str":
        return None if isinstance(value, str) else "a string is expected"
    if kind.startswith("flashlatent."):
        name = kind.rpartition(".")[2]
        return None if type(value).__name__ == name else f"a flashlatent.{name} is expected"
    if "[int]" in kind:
        try:
            return None if all(_is_int(entry) for entry in value) else "a sequence of integers is expected"
        except TypeError:
            return "a sequence of integers is expected"
    return None


def shown(value):
    """A value in a message: arrays by their type."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, str):
        return f"'{value[:40]}'"
    return f"a {type(value).__name__}"


def fault(function, values, options, has_self):
    """The fault of a call, in a line; None if nothing is found."""
    name, declared = function.__name__.lstrip("_"), parameters(function)
    names = [parameter.name for parameter in declared]
    for option in options:
        if option not in names:
            close = difflib.get_close_matches(option, names, 1)
            hint = f"; '{close[0]}' is near" if close else f"; there are {', '.join(names)}"
            return f"{option} is no argument of {name}(){hint}"
    places = [parameter for parameter in declared if not parameter.keyword_only]
    values = values[1:] if has_self else values
    if len(values) > len(places):
        return f"{name}() is called with {len(values)} arguments by position; {len(places)} are accepted"
    given = dict(zip((parameter.name for parameter in places), values))
    for option, value in options.items():
        if option in given:
            return f"{option} is given twice in a call of {name}()"
        given[option] = value
    for parameter in declared:
        if parameter.name not in given:
            if parameter.required:
                what = {"object": "an array is", "float": "a number is", "int": "an integer is"}
                return f"{parameter.name} is missing; {what.get(parameter.annotation, 'it is')} expected"
            continue
        expected = _expected(parameter.annotation, given[parameter.name])
        if expected is not None:
            return f"{parameter.name} is {shown(given[parameter.name])}; {expected}"
    return None


def explain(function, values, options, error):
    """Raises ArgumentTypeError in place of nanobind's TypeError; returns if `error` is another error."""
    text = str(error)
    if "incompatible function arguments" not in text:
        return
    has_self = function.__nb_signature__[0][0].partition("(")[2].startswith("self")
    raise ArgumentTypeError(fault(function, values, options, has_self) or text.partition("\n")[0]) from None


def install():
    """Puts _checked() in front of all functions and methods of the extension module."""
    for name, member in list(vars(_native).items()):
        if type(member).__name__ == "nb_func" and name != "_checked":
            setattr(_native, name, _native._checked(member))
        elif isinstance(member, type):
            for method_name, method in list(vars(member).items()):
                if method_name.startswith("__"):
                    continue
                if type(method).__name__ == "nb_method":
                    setattr(member, method_name, _native._checked(method))
                elif type(method).__name__ == "nb_func":
                    setattr(member, method_name, staticmethod(_native._checked(method)))


install()
