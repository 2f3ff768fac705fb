"""Errors for calls that the extension module does not take: they name the argument, its value and what would do."""

import functools
import inspect
import operator
import struct
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from . import _native, _signatures
from ._hints import hint
from ._errors import ArgumentTypeError, InvalidArgumentError


class Parameter(NamedTuple):
    """A parameter of a function of the extension module, from its signature."""

    name: str
    annotation: str  # "object", "int", "str | None", ...
    required: bool
    keyword_only: bool


def parameters(function):
    """The parameters of a function of one signature, without self."""
    found, keyword_only = [], False
    for item in _signatures.items_of(function):
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
    if isinstance(value, (str, bytes, bytearray)):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _lost_in_fp32(value: float) -> Optional[str]:
    """What would do in place of a number that is 0 or infinity in fp32, and neither here; None if it is kept."""
    try:
        kept = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return "that is infinite in fp32, and a magnitude of at most 3.4e38 is expected"
    return "that is 0 in fp32, and 0 or a magnitude of at least 1.2e-38 is expected" if kept == 0 != value else None


# The range of elements: 32 bits, except for the ids of pages' contents.
_ENTRIES = {"contents": (0, 2**64 - 1)}


def _expected_entries(name, kind, value) -> Optional[str]:
    """The same of a sequence or a tuple of integers."""
    what = "a sequence of integers"
    if kind.startswith("tuple"):
        what = f"a tuple of {kind.count('int')} integers"
        if not isinstance(value, (tuple, list)) or len(value) != kind.count("int"):
            return f"{what} is expected"
    least, most = _ENTRIES.get(name, (-2**31, 2**31 - 1))
    try:
        if isinstance(value, (str, bytes, bytearray)):
            return f"{what} is expected"
        if not isinstance(value, Sequence) and not hasattr(type(value), "__getitem__"):
            return f"{what} is expected"
        for entry in value:
            if not _is_int(entry):
                return f"{what} is expected"
            if not least <= operator.index(entry) <= most:
                return f"{operator.index(entry)} is in it, and integers from {least} to {most} are expected"
    except TypeError:
        return f"{what} is expected"
    return None


def _expected(name, annotation, value) -> Optional[str]:
    """What would do in place of this value; None if the value fits."""
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
    if kind in ("int", "float") and isinstance(value, bool):
        return "an integer is expected" if kind == "int" else "a number is expected"
    if kind == "int":
        if not _is_int(value):
            return "an integer is expected"
        return None if -2**31 <= operator.index(value) < 2**31 else "an integer of 32 bits is expected"
    if kind == "float":
        return _lost_in_fp32(float(value)) if _is_number(value) else "a number is expected"
    if kind == "str":
        return None if isinstance(value, str) else "a string is expected"
    if "[flashlatent." in kind:
        entry = kind.rpartition(".")[2].rstrip("]")
        fits = isinstance(value, Sequence) and all(type(item).__name__ == entry for item in value)
        return None if fits else f"a sequence of flashlatent.{entry} is expected"
    if kind.startswith("flashlatent."):
        name = kind.rpartition(".")[2]
        return None if type(value).__name__ == name else f"a flashlatent.{name} is expected"
    if "[int" in kind:
        return _expected_entries(name, kind, value)
    return None


def shown(value):
    """A value in a message: numbers and short tuples as they are, arrays by their type."""
    short = isinstance(value, tuple) and len(value) <= 4 and all(isinstance(entry, (int, float)) for entry in value)
    try:
        short |= getattr(value, "shape", None) == ()
    except RuntimeError:  # of a nested tensor
        pass
    if value is None or isinstance(value, (bool, int, float)) or short:
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}..."
    if isinstance(value, str):
        return f"'{value[:40]}'"
    return f"a {type(value).__name__}"


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """The number as an int; numbers of other packages are accepted, True and False are not."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise InvalidArgumentError(f"{name} is {shown(value)}; a whole number from {least} to {most} is expected")
    return number


def entries(name, kind, given):
    """A sequence of NamedTuples, or of tuples of their fields, as NamedTuples."""
    what = f"a {kind.__name__}, or a tuple of its fields ({', '.join(kind._fields)})"
    if isinstance(given, (kind, str, bytes)):
        raise ArgumentTypeError(f"{name} is {shown(given)}; a sequence is expected, each entry {what}")
    try:
        given = list(given)
    except TypeError:
        raise ArgumentTypeError(f"{name} is {shown(given)}; a sequence is expected, each entry {what}") from None
    least = len(kind._fields) - len(kind._field_defaults)
    for number, entry in enumerate(given):
        if not isinstance(entry, (tuple, list)):
            raise ArgumentTypeError(f"{name}[{number}] is {shown(entry)}; {what} is expected")
        if not least <= len(entry) <= len(kind._fields):
            raise ArgumentTypeError(f"{name}[{number}] has {len(entry)} fields; {what} is expected")
    return [kind(*entry) for entry in given]


def fault(function, values, options, has_self):
    """The fault of a call, in a line; None if no fault is found."""
    whole_name = (function.__qualname__ or function.__name__).lstrip("_")
    return _fault(whole_name, parameters(function), values[1:] if has_self else values, options)


def _fault(whole_name, declared, values, options):
    name = whole_name.rpartition(".")[2]
    names = [parameter.name for parameter in declared]
    for option in options:
        if option not in names:
            return f"{option} is no argument of {name}(){hint(option, whole_name, names)}"
    places = [parameter for parameter in declared if not parameter.keyword_only]
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
        expected = _expected(parameter.name, parameter.annotation, given[parameter.name])
        if expected is not None:
            return f"{parameter.name} is {shown(given[parameter.name])}; {expected}"
    return None


def _has_self(function):
    return function.__nb_signature__[0][0].partition("(")[2].startswith("self")


def explain(function, values, options, error):
    """Raises ArgumentTypeError in place of nanobind's TypeError; returns if `error` is another error."""
    text = str(error)
    if "incompatible function arguments" not in text:
        return
    raise ArgumentTypeError(fault(function, values, options, _has_self(function)) or
                            _refused_self(function, values)) from None


def _refused_self(function, values):
    """Why a call whose arguments all fit is refused: its method is called on another object, or on one whose class has
    its own __init__."""
    name = function.__name__.lstrip("_")
    given = ", ".join(shown(value) for value in values) or "nothing"
    return f"{name}() is called with {given}; an object that was made by calling its class, super().__init__(), is expected first"


Function = TypeVar("Function", bound=Callable[..., Any])


def named(function: Function) -> Function:
    """Makes a Python function of this package refuse unknown and missing arguments as the extension's functions do."""
    declared = []
    for parameter in inspect.signature(function).parameters.values():
        required = parameter.default is parameter.empty
        is_array = required and parameter.annotation in (parameter.empty, Any)
        kind = "float" if parameter.annotation is float else "object" if is_array else ""
        declared.append(Parameter(parameter.name, kind, required, parameter.kind is parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def call(*values, **options):
        try:
            return function(*values, **options)
        except TypeError as error:
            if error.__traceback__.tb_next is not None:  # of the function's own calls
                raise
            text = _fault(function.__name__, declared, values, options) or str(error)
        raise ArgumentTypeError(text)

    return call  # type: ignore[return-value]


def _checked(function):
    """The function behind checked_call.cc, which needs to know which arguments are numbers."""
    declared = parameters(function)
    is_number = [parameter.annotation.partition(" | ")[0] in ("int", "float") for parameter in declared]
    places = tuple(number for number, parameter in zip(is_number, declared) if not parameter.keyword_only)
    names = frozenset(parameter.name for number, parameter in zip(is_number, declared) if number)
    return _native._checked(function, (False,) * _has_self(function) + places, names)


def install():
    """Puts _checked() in front of all functions and methods of the extension module."""
    for name, member in list(vars(_native).items()):
        if type(member).__name__ == "nb_func" and name != "_checked":
            setattr(_native, name, _checked(member))
        elif isinstance(member, type):
            for method_name, method in list(vars(member).items()):
                if method_name.startswith("__"):
                    continue
                if type(method).__name__ == "nb_method":
                    setattr(member, method_name, _checked(method))
                elif type(method).__name__ == "nb_func":
                    setattr(member, method_name, staticmethod(_checked(method)))
            _signatures.document(member)


install()
