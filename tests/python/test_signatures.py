"""Every public function, method and class of the package says what it takes and does, to inspect.signature() and help()."""

import importlib
import inspect
import pkgutil
import pydoc
import re
import types

import pytest

import flashlatent
from flashlatent import _native, _signatures

OTHERS = ("vllm", "sglang", "transformers", "torch", "matplotlib", "numpy")  # packages that a module may need


def modules():
    """All public modules whose own requirements are here."""
    found = [flashlatent]
    for entry in pkgutil.walk_packages(flashlatent.__path__, "flashlatent.", onerror=lambda name: None):
        if any(part.startswith("_") for part in entry.name.split(".")[1:]):
            continue
        try:
            found.append(importlib.import_module(entry.name))
        except ImportError as error:
            missing = (getattr(error, "name", None) or "").partition(".")[0]
            assert missing in OTHERS or any(name in str(error) for name in OTHERS), (entry.name, error)
    return found


def is_ours(member):
    return (getattr(member, "__module__", None) or "").partition(".")[0] == "flashlatent"


def members_of(owner, name):
    """(name, callable or property) of a class's own public members."""
    for member_name, member in vars(owner).items():
        if member_name.startswith("_"):
            continue
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if isinstance(member, property) or callable(member) and not isinstance(member, type):
            yield f"{name}.{member_name}", member


def public():
    """(name, member) of all that users call or read, once each."""
    seen, found = set(), []
    for module in modules():
        names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        for name in names:
            try:
                member = getattr(module, name)
            except ImportError as error:  # of a module that imports an engine when it is asked
                assert (error.name or "").partition(".")[0] in OTHERS, (module, name, error)
                continue
            if not callable(member) or isinstance(member, types.ModuleType) or not is_ours(member) or id(member) in seen:
                continue
            seen.add(id(member))
            whole = f"{module.__name__}.{name}"
            found.append((whole, member))
            if isinstance(member, type) and not issubclass(member, Exception):
                found += members_of(member, whole)
    return found


PUBLIC = public()


def test_the_walk_meets_the_native_functions():
    names = {name for name, _ in PUBLIC}
    for name in ("decode", "combine", "append_latent", "Plan", "Plan.decode", "Plan.decode_kv", "Plan.schedule",
                 "Plan.like", "Step.decode", "Step.find", "PagePool.create", "PagePool.stats", "Problem.of_arrays",
                 "Problem.batch", "sparse_prefill", "copy_pages", "KeyValueCache"):
        assert f"flashlatent.{name}" in names


@pytest.mark.parametrize("name, member", PUBLIC, ids=[name for name, _ in PUBLIC])
def test_signature_and_documentation(name, member):
    text = inspect.getdoc(member)
    assert text and len(text) > 10, f"{name} has no documentation"
    if isinstance(member, property) or member is flashlatent.Sequence:  # PagePool makes these
        return
    if isinstance(member, type) and issubclass(member, Exception):
        return
    kinds = {parameter.kind for parameter in inspect.signature(member).parameters.values()}
    assert inspect.Parameter.VAR_POSITIONAL not in kinds or name.rpartition(".")[2] in VARIADIC, inspect.signature(member)


VARIADIC = {"get_mla_metadata", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
            "flash_attn_varlen_qkvpacked_func", "update", "main"}  # arguments of others that are not looked at


def native():
    """(name, function) of all functions and methods of the extension module."""
    for name, member in vars(_native).items():
        if type(member).__name__ == "CheckedCall" and (not name.startswith("_") or name in CONSTRUCTORS):
            yield name, member
        elif isinstance(member, type):
            for method_name, method in vars(member).items():
                method = getattr(method, "__func__", method)
                if type(method).__name__ == "CheckedCall" and not method_name.startswith("_"):
                    yield f"{name}.{method_name}", method


CONSTRUCTORS = {"_Plan": "Plan", "_Problem": "Problem", "_Step": "Step", "_PagePool": "PagePool"}


@pytest.mark.parametrize("name, function", list(native()), ids=[name for name, _ in native()])
def test_native_documentation_names_every_argument(name, function):
    text = getattr(_native, CONSTRUCTORS[name]).__doc__ if name in CONSTRUCTORS else function.__doc__
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.name == "self" or _signatures.says(text, parameter.name), (name, parameter.name)


def test_documentation_from_elsewhere_names_own_arguments_alone():
    """decode_kv() tells of several arguments in one entry."""
    line, = (line for line in flashlatent.append_index_keys.__doc__.splitlines() if "as in decode()" in line)
    assert line.startswith("stream, threads  as in decode()")


def test_signatures_are_those_of_the_binding():
    decode = inspect.signature(flashlatent.Plan.decode)
    assert list(decode.parameters)[:5] == ["self", "q", "kv_cache", "block_table", "cache_seqlens"]
    assert decode.parameters["block_table"].default is None and decode.parameters["q"].default is inspect.Parameter.empty
    assert decode.parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY
    step = flashlatent.Step()
    assert "self" not in inspect.signature(step.decode).parameters
    assert inspect.signature(step.decode).parameters["softmax_scale"].annotation is float
    assert flashlatent.Plan.decode.__text_signature__.startswith("($self, q, kv_cache, block_table=None")
    for owner in (flashlatent.Plan, flashlatent.Problem, flashlatent.Step, flashlatent.PagePool):
        taken = inspect.signature(owner).parameters
        maker = inspect.signature(getattr(_native, f"_{owner.__name__}")).parameters
        assert list(taken) == list(maker) and taken == maker
        declared = owner.__init__.__nb_signature__[0][0]
        assert all(f"{name}: " in declared for name in taken)  # what type stubs have
    assert inspect.signature(flashlatent.Problem).parameters["empty_lse"].default == float("-inf")
    # The one-call functions of Python take what Step does, and how Steps are made.
    assert set(inspect.signature(flashlatent.decode).parameters) >= \
        set(inspect.signature(flashlatent.Step.decode).parameters) - {"self", "plan"}


def test_torch_functions_have_their_operators_options():
    torch = pytest.importorskip("torch")
    import flashlatent.torch

    for name in flashlatent.torch.__all__:
        taken = inspect.signature(getattr(flashlatent.torch, name)).parameters
        schema = getattr(torch.ops.flashlatent, name).default._schema
        assert set(taken) == {argument.name for argument in schema.arguments}, name
        assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in taken.values())
    decode = inspect.signature(flashlatent.torch.decode).parameters
    assert decode["v_dim"].default == 512 and decode["kv_scale"].default is None
    assert decode["softmax_scale"].default is inspect.Parameter.empty


def test_a_subclass_has_a_signature_of_its_own():
    class Mine(flashlatent.Step):
        def __init__(self, layers):
            super().__init__(calls_per_plan=layers)

    class Same(flashlatent.Step):
        pass

    assert list(inspect.signature(Mine).parameters) == ["layers"]
    assert "threads" in inspect.signature(Same).parameters


@pytest.mark.parametrize("thing, words", [
    (flashlatent.Plan.decode, ["decode(self, q, kv_cache, block_table=None",
                               "int32 (batch, max_pages)"]),
    (flashlatent.append_latent, ["append_latent(latent, rope, slot_mapping, kv_cache, *", "int32 or int64 (n)"]),
    (flashlatent.Plan, ["Plan(problem: ", "device: str = 'cpu'", "schedule(self, lengths"]),
    (flashlatent.Problem, ["query heads h_q, a multiple of kv_heads"]),
])
def test_help(thing, words):
    text = pydoc.plain(pydoc.render_doc(thing))
    for word in words:
        assert word in text
    assert "(...)" not in re.sub(r"__\w+__\(\.\.\.\)", "", text)  # of Python's own methods


def test_stubs_come_with_the_package():
    from pathlib import Path

    folder = Path(flashlatent.__file__).parent
    assert (folder / "py.typed").exists()
    stub = folder / "_native.pyi"
    if not stub.exists():
        pytest.skip("not an installed package")
    text = stub.read_text()
    for name, _ in native():
        if name in CONSTRUCTORS:
            continue
        assert f"def {name.rpartition('.')[2]}(" in text
