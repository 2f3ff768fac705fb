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


def kernel(tree, path, name):
    """The kernel of this name in a file below `tree`, called as kernel[grid](...)."""
    with open(os.path.join(tree, path), encoding="utf-8") as file:
        (node,) = [node for node in ast.walk(ast.parse(file.read())) if getattr(node, "name", None) == name]
    node.decorator_list = []
    source, file = ast.unparse(node), f"<{path} {name}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    members = {"triton": triton, "tl": tl}
    exec(compile(source, file, "exec"), members)  # noqa: S102
    return interpreter.InterpretedFunction(members[name])


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
