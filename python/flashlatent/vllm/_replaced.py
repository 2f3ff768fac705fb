"""Functions of vLLM's modules that layers of ours replace. A choice holds for the engine that is being made: before the
next one of the process chooses, vLLM's own functions are back."""

from typing import Any, Callable, Dict, Tuple

_own: Dict[Tuple[int, str], Tuple[Any, Callable]] = {}


def replace(module: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """make: gets vLLM's function and returns ours."""
    _, own = _own.setdefault((id(module), name), (module, getattr(module, name)))
    setattr(module, name, make(own))


def restore() -> None:
    for (_, name), (module, own) in _own.items():
        setattr(module, name, own)
    _own.clear()
