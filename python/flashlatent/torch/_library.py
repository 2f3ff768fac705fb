"""torch.ops.flashlatent: how an operator gets its implementations, and its function a signature."""

import inspect
from typing import Optional, Tuple

import torch
from torch import Tensor

from .._errors import InvalidArgumentError
from .._torch_call import tensors

is_grad_enabled = torch.is_grad_enabled
_library = torch.library.Library("flashlatent", "DEF")
_ANNOTATIONS = {"Optional[Tensor]": Optional[Tensor], "Tensor": Tensor, "bool": bool, "int": int, "float": float,
                "Optional[int]": Optional[int], "str": str, "Optional[List[int]]": Optional[Tuple[int, int, int]]}


def define(schema, real, fake, reads_numbers=True):
    """Registers an operator for both devices, and its fake implementation. One that reads shapes and lengths alone takes
    tensors that require a gradient."""
    name = schema.partition("(")[0]
    _library.define(schema)

    # Here and not in a kernel for torch's key Autograd: one of Python doubles the time of a call.
    def checked_real(*args, **options):
        if reads_numbers and is_grad_enabled() and _any_requires_gradient(*args, **options):
            _refuse_gradients(name, args, options)
        return real(*args, **options)

    def checked_fake(*args, **options):
        check_device(tensors(getattr(torch.ops.flashlatent, name), args, options))
        if reads_numbers and is_grad_enabled() and _any_requires_gradient(*args, **options):
            _refuse_gradients(name, args, options)
        return fake(*args, **options)

    for key in ("CPU", "CUDA"):
        _library.impl(name, checked_real, key)

    torch.library.register_fake(f"flashlatent::{name}", checked_fake, lib=_library)


def _each_for_gradient(*args, **options):
    for value in (*args, *options.values()):
        if any(getattr(item, "requires_grad", False) for item in (value if isinstance(value, list) else [value])):
            return True
    return False


# torch's own since 2.5 takes a third of the time.
_any_requires_gradient = getattr(torch._C, "_any_requires_grad", _each_for_gradient)


def _refuse_gradients(name, args, options):
    """Refuses a call in grad mode with a tensor that requires a gradient: no operator computes one, and backward() would
    leave it out without a word."""
    names = (argument.name for argument in getattr(torch.ops.flashlatent, name).default._schema.arguments)
    given = {**dict(zip(names, args)), **options}
    found = next(key for key, value in given.items() if _each_for_gradient(value))
    raise InvalidArgumentError(f"{found} requires a gradient, and flashlatent::{name} has no backward; a detached tensor, "
                               "or a call in torch.no_grad() or torch.inference_mode(), is accepted")


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
