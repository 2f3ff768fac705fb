"""Triton kernels of an engine's sources on a CPU, by Triton's interpreter."""

import ast
import linecache
import os

import torch
import triton
import triton.experimental.gluon  # noqa: F401  which takes Triton's functions as they are
import triton.language as tl
from triton.runtime import interpreter

_DTYPES = {"fp8e4nv": torch.float8_e4m3fn, "bf16": torch.bfloat16, "fp32": torch.float32}


def kernel(tree, path, name, *calls):
    """The kernel of this name, Class.name of a class's, in a file below `tree`, called as kernel[grid](...); calls:
    functions that it calls."""
    with open(os.path.join(tree, path), encoding="utf-8") as file:
        whole = ast.parse(file.read())
    members = {"triton": triton, "tl": tl}
    for function in (*calls, name):
        node = whole
        for part in function.split("."):
            (node,) = [inner for inner in node.body if getattr(inner, "name", None) == part]
        node.decorator_list = []
        source, file = ast.unparse(node), f"<{path} {function}>"
        linecache.cache[file] = len(source), None, source.splitlines(True), file
        exec(compile(source, file, "exec"), members)  # noqa: S102
        members[node.name] = interpreter.InterpretedFunction(members[node.name])
    return members[node.name]


def interpret(monkeypatch):
    """Has Triton's own functions interpreted, too, and numbers narrowed as a GPU does it: the interpreter's conversions
    neither carry nor go to the even."""
    for module in (tl, tl.standard):
        for name, function in list(vars(module).items()):
            if isinstance(function, triton.JITFunction):
                monkeypatch.setattr(module, name, interpreter.InterpretedFunction(function.fn))

    def convert(numbers, given, wanted, rounding_mode):
        before, after = _DTYPES[given.name], _DTYPES[wanted.name]
        bits = torch.from_numpy(numbers.copy()).view(before)
        whole = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[after.itemsize]
        return bits.to(after).view(whole).numpy().reshape(numbers.shape)

    monkeypatch.setattr(interpreter, "_convert_float", convert)
