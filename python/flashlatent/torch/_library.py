"""torch.ops.flashlatent: how an operator gets its implementations, and its function a signature."""

import inspect
from typing import Optional, Tuple

import torch
from torch import Tensor

from .._errors import InvalidArgumentError
from .._torch_call import tensors

_library = torch.library.Library("flashlatent", "DEF")
_ANNOTATIONS = {"Optional[Tensor]": Optional[Tensor], "Tensor": Tensor, "bool": bool, "int": int, "float": float,
                "Optional[int]": Optional[int], "str": str, "Optional[List[int]]": Optional[Tuple[int, int, int]]}


def define(schema, real, fake):
    """Registers an operator for both devices, and its fake implementation."""
    name = schema.partition("(")[0]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, real, key)

    def checked_fake(*args, **options):
        check_device(tensors(getattr(torch.ops.flashlatent, name), args, options))
        return fake(*args, **options)

    torch.library.register_fake(f"flashlatent::{name}", checked_fake, lib=_library)


def check_device(tensors):
    """Refuses tensors on several devices; in a fake call torch would take the device of any of them."""
    first, *others = tensors
    for name in others:
        if tensors[name].device != tensors[first].device:
            raise InvalidArgumentError(f"{name} is on {tensors[name].device} and {first} on {tensors[first].device}; "
                                       "one device is expected")


def nothing(*args, **kwargs):
    """The fake implementation of an operator that only writes to its arguments."""


def sign(function):
    """Gives a function whose options go to an operator by name that operator's, with their defaults."""
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    if len(own) == len(signature.parameters):
        return
    names = [parameter.name for parameter in own]
    for argument in getattr(torch.ops.flashlatent, function.__name__).default._schema.arguments:
        if argument.name not in names:
            default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
            kind = _ANNOTATIONS.get(str(argument.type), inspect.Parameter.empty)
            own.append(inspect.Parameter(argument.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    function.__signature__ = signature.replace(parameters=own)
