"""Parts of an unpacked SGLang, whose modules load GPU code: functions and methods taken from their sources.
FLASHLATENT_SGLANG names the folder to import sglang from."""

import ast
import linecache
import os
import sys
from types import ModuleType

TREE = os.environ.get("FLASHLATENT_SGLANG", "")


def taken(path, names, methods=None):
    """Source of definitions in a file of SGLang's; of a class in `methods` only its methods of these names."""
    with open(os.path.join(TREE, "sglang", path), encoding="utf-8") as file:
        body = ast.parse(file.read()).body
    found = [node for node in body if getattr(node, "name", None) in names]
    assert sorted(node.name for node in found) == sorted(names)
    for node in found:
        if node.name in (methods or {}):
            wanted = methods[node.name]
            node.bases = []
            node.body = [part for part in node.body if getattr(part, "name", None) in wanted]
            assert sorted(part.name for part in node.body) == sorted(wanted)
    return "from __future__ import annotations\n" + "\n".join(ast.unparse(node) for node in found)


def load(name, source, **members):
    """A module of this name, by executing the source where inspect finds it."""
    module = ModuleType(name)
    module.__dict__.update(members)
    file = f"<{name}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    sys.modules[name] = module  # where dataclasses look
    exec(compile(source, file, "exec"), module.__dict__)  # noqa: S102
    return module


def empty_packages(*names):
    """Packages of these names, whose modules can be imported and whose __init__ files are left out."""
    for name in names:
        package = ModuleType(name)
        package.__path__ = [os.path.join(TREE, *name.split("."))]
        sys.modules[name] = package


def never(*_, **__):
    raise AssertionError("SGLang's own kernel was called")
