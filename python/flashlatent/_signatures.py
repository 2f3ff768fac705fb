"""Signatures and documentation of the extension module, for inspect, help() and editors. All of it comes from the
functions' own __nb_signature__, so an argument that is added there appears here."""

import collections.abc
import inspect
import re
from typing import Any, Dict, List, Optional, Tuple

from . import _native

_EMPTY = inspect.Parameter.empty
_made: Dict[Tuple[int, str], Any] = {}  # by the function's id: a module's functions live as long as the module


def attribute(function, name):
    """What checked_call.cc answers for __doc__, __signature__ and __text_signature__ of a function."""
    key = id(function), name
    if key not in _made:
        if name == "__doc__":
            _made[key] = _doc_of(function)
        elif name == "__signature__":
            _made[key] = signature_of(function)
        else:
            _made[key] = _as_text(signature_of(function))
    return _made[key]


def items_of(function) -> List[str]:
    """The parameters of a function with one signature as they stand in it, self, * and / included."""
    text = function.__nb_signature__[0][0]
    inside = text[text.index("(") + 1:text.rindex(")")]
    return [_with_bar(item) for item in re.split(r", (?![^\[]*\])", inside)] if inside else []


def _with_bar(text) -> str:
    """`typing.Optional[int]`, as builds for Python 3.9 have it, as `int | None`."""
    return re.sub(r"typing\.Optional\[(.*)\]", r"\1 | None", text)


def signature_of(function, has_self=True) -> inspect.Signature:
    """The signature of a function of the extension module, with its defaults; without self if that is not wanted."""
    text, _, defaults = function.__nb_signature__[0]
    kind, found = inspect.Parameter.POSITIONAL_OR_KEYWORD, []
    for item in items_of(function):
        if item == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
            continue
        if item == "/":
            found = [parameter.replace(kind=inspect.Parameter.POSITIONAL_ONLY) for parameter in found]
            continue
        declared, _, default = item.partition(" = ")
        name, _, annotation = declared.partition(": ")
        if name != "self" or has_self:
            value = defaults[int(default.lstrip("\\="))] if default else _EMPTY
            found.append(inspect.Parameter(name, kind, default=value, annotation=_annotation(annotation)))
    returned = _with_bar(text.rpartition(" -> ")[2]) if " -> " in text else ""
    return inspect.Signature(found, return_annotation=None if returned == "None" else _annotation(returned))


def _annotation(text) -> Any:
    """The type that a signature names; nothing for arrays, whose documentation says what they are."""
    kinds = text.split(" | ")
    optional = "None" in kinds
    kinds = [kind for kind in kinds if kind != "None"]
    if kinds in (["object"], [""], ["handle"]):
        return _EMPTY
    try:
        found = eval(kinds[0], {"collections": collections, "flashlatent": _Package, "_native": _native})
    except Exception:  # a name of the compiler's
        return _EMPTY
    return Optional[found] if optional else found


class _Package:
    _native = _native


def _as_text(signature) -> str:
    parameters = [parameter.replace(annotation=_EMPTY) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=_EMPTY))
    return text.replace("(self", "($self", 1) if "self" in signature.parameters else text


class ClassSignature:
    """__signature__ of a class whose constructor is `maker`; a subclass with its own __init__ keeps its own."""

    def __init__(self, owner, maker):
        self._owner, self._maker = owner, maker

    def __get__(self, instance, owner):
        if owner.__init__ is not self._owner.__init__:
            raise AttributeError("__signature__")
        return signature_of(self._maker).replace(return_annotation=_EMPTY)


Entry = Tuple[Tuple[str, ...], str]  # names, and the lines about them


def entries(text) -> List[Entry]:
    """What a documentation says of arguments, one or several names a line:

        name       what it is
        one, other  what they are, on this
                   line and the next
    """
    found: List[Entry] = []
    names = ""
    for line in inspect.cleandoc(text or "").splitlines():
        continued = re.match(r"(?:\w+, )*\w+,$", line)
        begins = re.match(r"((?:\w+, )*\w+) {2,}\S", line)
        if continued and not names:
            names = line
            found.append((tuple(re.findall(r"\w+", line)), line))
        elif begins:
            own = tuple(re.findall(r"\w+", begins[1]))
            if names:
                found[-1] = (found[-1][0] + own, f"{found[-1][1]}\n{line}")
            else:
                found.append((own, line))
            names = ""
        elif found and line.startswith("  "):
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line}")
    return found


def _doc_of(function) -> str:
    """A function's own documentation, and for parameters that it does not explain what decode(), decode_kv() and
    Problem say."""
    text = function.__nb_signature__[0][1] or ""
    names = [name for name in signature_of(function, has_self=False).parameters if not says(text, name)]
    if not names:
        return text
    from . import _decode

    sources = [_decode.decode_kv.__doc__, _decode.decode.__doc__]
    if "kv_cache" in signature_of(function).parameters:
        sources.reverse()
    is_of_problem = (function.__qualname__ or "").startswith("Problem.")
    sources.insert(0 if is_of_problem else 2, _native.Problem.__doc__)
    lines = []
    for source in sources:
        for told, line in entries(source):
            wanted = [name for name in told if name in names]
            if wanted and len(wanted) < len(told):  # of a list of arguments those that this function has
                line = re.sub(r"^(?:\w+,\s+)*\w+(?= {2,})", ", ".join(wanted), line)
            if wanted:
                lines.append(line)
                names = [name for name in names if name not in told]
    return "\n".join([text.rstrip(), "", *lines]) if lines else text


def says(text, name) -> bool:
    """Does a documentation tell what an argument is, in an entry or a sentence about `name`?"""
    return f"`{name}`" in text or any(name in names for names, _ in entries(text))


def document(owner):
    """Gives a class of the extension module its signature, and its undocumented properties the class's text about
    them."""
    maker = vars(_native).get(f"_{owner.__name__}")
    if maker is not None:
        owner.__signature__ = ClassSignature(owner, maker)
    told = {name: line for names, line in entries(owner.__doc__) for name in names}
    for name, member in list(vars(owner).items()):
        if isinstance(member, property) and not member.__doc__ and name in told:
            line = re.sub(r"^(?:\w+, )*\w+ {2,}", "", told[name])
            setattr(owner, name, property(member.fget, doc=re.sub(r"\n +", "\n", line)))
