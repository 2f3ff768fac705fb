"""Puts this package where engines import flash_mla from, and undoes that."""

import importlib
import sys
import types
from collections.abc import Iterable

from .._errors import InvalidArgumentError
from . import flash_mla_interface, fused_norm_rope_attn_rope_cast

# SGLang imports the package flash_mla, vLLM the copy that it carries.
NAMES = ("flash_mla", "vllm.third_party.flashmla")


class Installation:
    """What install() has put in place. undo() puts back what was there; so does the end of a `with` block."""

    def __init__(self):
        self._before = {}
        self._attributes = []

    def _put(self, name, module):
        self._before[name] = (sys.modules.get(name), module)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:  # `import a.b` and `from a import b` read the attribute
            holder = sys.modules[parent]
            self._attributes.append((holder, child, getattr(holder, child, None), module))
            setattr(holder, child, module)

    def undo(self):
        """Puts back what was there, but leaves what others have put there since. A second call does nothing."""
        for holder, child, before, module in reversed(self._attributes):
            if getattr(holder, child, None) is not module:
                continue
            if before is None:
                delattr(holder, child)
            else:
                setattr(holder, child, before)
        for name, (before, module) in self._before.items():
            if sys.modules.get(name) is not module:
                continue
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
        self._before, self._attributes = {}, []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.undo()


def _copy(name, source):
    """A module of this name with the source's contents: with one module object under two names neither could be undone
    alone."""
    module = types.ModuleType(name, source.__doc__)
    module.__dict__.update({key: value for key, value in vars(source).items()
                            if key not in ("__name__", "__spec__", "__loader__", "__package__")})
    return module


def install(names=NAMES):
    """Puts this package in place of flash_mla for this process; returns an Installation with undo().

        flashlatent.flash_mla.install()
        import flash_mla                       # this package

    names  where it goes: "flash_mla" (SGLang, and most programs), "vllm.third_party.flashmla" (vLLM). Its modules
           flash_mla_interface and fused_norm_rope_attn_rope_cast go along. A name whose parent package cannot be imported is left out.

    Call it before the engine is imported: names that a module has already imported by `from flash_mla import ...` stay.
    Processes that are spawned later do not inherit the installation; forked ones do. Undo two installations in reverse
    order.

    Raises InvalidArgumentError (a ValueError) for a name that is none of these.
    """
    names = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise InvalidArgumentError(f"names has {unknown[0]!r}; {' and '.join(map(repr, NAMES))} are accepted")
    from flashlatent import flash_mla  # whole by now
    done = Installation()
    for name in names:
        parent = name.rpartition(".")[0]
        if parent and not _importable(parent):
            continue
        package = _copy(name, flash_mla)
        done._put(name, package)
        for module in (flash_mla_interface, fused_norm_rope_attn_rope_cast):
            child = module.__name__.rpartition(".")[2]
            setattr(package, child, _copy(f"{name}.{child}", module))
            done._put(f"{name}.{child}", getattr(package, child))
    return done


def _importable(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
