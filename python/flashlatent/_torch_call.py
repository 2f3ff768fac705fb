"""Calls of torch's operators: errors for what torch refuses, or takes for something else, are in this package's
words."""

import re

import torch
from torch import Tensor

from ._arguments import shown
from ._errors import ArgumentTypeError, FlashLatentError, InvalidArgumentError
from ._hints import hint

_WRITTEN = ("out", "max_logits", "lse", "kv_cache", "key_cache", "value_cache", "to",
            "index_cache", "counts")  # by some operator
_NUMBERS = {"v_dim": "an integer", "tokens": "an integer", "window": "an integer", "page_size": "an integer",
            "extra_page_size": "an integer", "typical_tokens": "an integer", "calls_per_plan": "an integer",
            "topk": "an integer", "candidate_block": "an integer", "best_blocks": "an integer",
            "slot_page_size": "an integer", "rank": "an integer", "ratio": "an integer", "groups": "an integer",
            "scale_columns": "an integer", "softmax_scale": "a number", "soft_cap": "a number", "norm": "a number",
            "q_norm": "a number"}
_FLAGS = ("batch_invariant", "causal", "check_inputs", "out_edge", "q_edge", "with_max_logits")
_FROM = {"flashlatent.convert_cache": "kv_cache", "flashlatent.copy_pages": "source"}  # what from_ is called
_RANKS = {"kv_cache": (4,), "key_cache": (4, 5), "value_cache": (4,), "partial_out": (5,)}  # where sizes are made of them


def tensors(operator, args, options):
    """The tensors of a call by the names of their arguments."""
    names = (argument.name for argument in operator.default._schema.arguments)
    return {name: value for name, value in {**dict(zip(names, args)), **options}.items() if isinstance(value, Tensor)}


def call(operator, *args, **options):
    """Calls an operator; raises ArgumentTypeError for arguments that torch refuses, and for what it takes: True or False
    for numbers, numbers and None for True or False."""
    for name, value in options.items():
        if (value is True or value is False) and name in _NUMBERS:
            raise ArgumentTypeError(f"{name} is {value}; {_NUMBERS[name]} is expected")
        if name in _FLAGS and value is not True and value is not False:
            raise ArgumentTypeError(f"{name} is {shown(value)}; True or False is expected")
    try:
        return operator(*args, **options)
    except FlashLatentError as error:
        name = _FROM.get(str(operator))
        if name is None:
            raise
        raise type(error)(re.sub(r"\bfrom_?(?= is |,| has )", name, str(error))) from None
    except (RuntimeError, AttributeError, IndexError, TypeError, ValueError) as error:
        if torch.compiler.is_compiling():  # what finds a fault cannot be traced
            raise
        _find_fault(operator, args, options)
        text = str(error).partition("\n")[0]
        if not text.startswith(("flashlatent::", "Unknown keyword argument")):
            raise
        raise ArgumentTypeError(_in_python(text, operator, options)) from None


def _find_fault(operator, args, options):
    """Raises an error that names the argument on which torch, or a size computed here, failed; returns if there is
    none."""
    arguments = operator.default._schema.arguments
    given = {**dict(zip((argument.name for argument in arguments), args)), **options}
    for argument in arguments:
        name, value = argument.name, given.get(argument.name)
        if value is None and str(argument.type) == "Tensor":
            raise ArgumentTypeError(f"{name} is None; an array is expected") from None
        if name == "dtype" and value is not None and not isinstance(value, torch.dtype):
            raise ArgumentTypeError(f"dtype is {shown(value)}; a torch.dtype is expected") from None
        if name == "rows" and isinstance(value, int) and not 0 <= value < 2**31:
            raise InvalidArgumentError(f"rows is {value}; it must be from 0 to {2**31 - 1}") from None
        if not isinstance(value, Tensor):
            continue
        if value.is_neg() and name in _WRITTEN:
            raise InvalidArgumentError(f"{name} is a lazily negated view (torch's is_neg()), and is written to; "
                                       "another tensor is expected") from None
        if value.layout != torch.strided or value.is_nested:
            raise InvalidArgumentError(f"{name} has the layout {value.layout}{' (nested)' if value.is_nested else ''}; "
                                       "torch.strided is accepted") from None
        if value.is_quantized or value.device.type not in ("cpu", "cuda", "meta"):
            raise InvalidArgumentError(f"{name} is {value.dtype} on {value.device}; plain tensors on cpu and cuda are "
                                       "accepted") from None
        ranks = _RANKS.get(name, (value.dim(),))
        if name == "kv_cache" and any(other.name == "page_size" for other in arguments):
            ranks = (2, 4)  # pages of bytes, too
        if value.dim() not in ranks:
            raise InvalidArgumentError(f"{name} is {tuple(value.shape)}; {' or '.join(map(str, ranks))} dimensions are "
                                       "expected") from None


def _in_python(text, operator, options):
    """torch's complaint about an operator's argument in the words of this package."""
    wrong = re.search(r"Expected a value of type '(.*)' for argument '(\w+)' but instead found type '(.*)'", text)
    if wrong:
        kind = wrong[1].replace("Optional[Tensor]", "Tensor or None")
        if kind == "int":
            return f"{wrong[2]} is {shown(options.get(wrong[2]))}; an integer of 64 bits is expected"
        return f"{wrong[2]} is a {wrong[3]}; a {kind} is expected"
    unknown = re.search(r"Unknown keyword argument '(\w+)' for operator 'flashlatent::(\w+)'", text)
    if not unknown:
        return text
    names = [argument.name for argument in operator.default._schema.arguments]
    return f"{unknown[1]} is no argument of {unknown[2]}(){hint(unknown[1], unknown[2], names)}"
