"""Arguments of a wrong type, missing, unknown or without effect: refused by name, in Python's words."""

import numpy as np
import pytest

import flashlatent
from oracle import Case


def refused(match, call, error=flashlatent.InvalidArgumentError):
    with pytest.raises(error, match=match) as raised:
        call()
    assert isinstance(raised.value, flashlatent.FlashLatentError)
    assert "\n" not in str(raised.value)


def call(function=flashlatent.decode, **change):
    case = Case([20, 3])
    arguments = dict(zip(["q", "kv_cache", "block_table", "cache_seqlens"], case.arguments()))
    return lambda: function(**{**arguments, **case.options(), **change})


FUNCTIONS = [flashlatent.decode, flashlatent.Step().decode, flashlatent.Step(stateless=True).decode]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("match, change", [
    ("q is None; an array", {"q": None}),
    ("kv_cache is None; an array", {"kv_cache": None}),
    ("softmax_scale is None; a number", {"softmax_scale": None}),
    ("softmax_scale is '1'; a number", {"softmax_scale": "1"}),
    ("v_dim is 32.0; an integer", {"v_dim": 32.0}),
    ("v_dim is 1099511627776; an integer of 32 bits", {"v_dim": 2**40}),
    ("causal is 1; True or False", {"causal": 1}),
    ("dtype is a type; a string", {"dtype": np.float16}),
    ("cache_seqlens is a list; an array", {"cache_seqlens": [20, 3]}),
])
def test_types(function, match, change):
    refused(match, call(function, **change), flashlatent.ArgumentTypeError)
    assert issubclass(flashlatent.ArgumentTypeError, TypeError) and issubclass(flashlatent.ArgumentTypeError, ValueError)


@pytest.mark.parametrize("match, change", [
    ("block_table is missing; expected int32 \\(batch, max_pages\\)", {"block_table": None}),
    ("block_table is int32 \\(1, .*; expected 2 rows, one a request of q",
     {"block_table": np.zeros((1, 3), np.int32)}),
    ("q is fp32 .*; bf16 and fp16", {"q": np.zeros((2, 1, 4, 64), np.float32)}),
    ("kv_cache has elements of type float64; bf16, fp16", {"kv_cache": np.zeros((8, 16, 1, 64))}),
    ("block_table has elements of type float64; int32", {"block_table": np.zeros((2, 3))}),
    ("tokens is 3 and cu_seqlens_q is not given", {"tokens": 3}),
    ("topk_length is given, but the problem is dense", {"topk_length": np.zeros(2, np.int32)}),
    ("dtype is 'fp32'; bf16 and fp16", {"dtype": "fp32"}),
])
def test_values(match, change):
    refused(match, call(**change))


@pytest.mark.parametrize("match, change", [
    ("dtype is 'bf16', which says what 16-bit integers hold, and no array has any", {"dtype": "bf16"}),
    ("stream is given and the arrays are on the CPU", {"stream": 1}),
])
def test_options_without_effect(match, change):
    refused(match, call(**change))
    refused(match, call(flashlatent.Step().decode, **change))


def test_cache_operations():
    case = Case([20, 3])
    kv_cache, tokens, slots = case.kv_cache, np.zeros((2, 64), np.float16), np.array([0, 1], np.int32)
    begins = np.array([0, 1, 2], np.int32)
    table = case.block_table
    refused("latent is None; an array", lambda: flashlatent.append_latent(None, None, slots, kv_cache))
    refused("slot_mapping is None", lambda: flashlatent.append_latent(tokens, None, None, kv_cache))
    refused("stream is given", lambda: flashlatent.append_latent(tokens, None, slots, kv_cache, stream=1))
    refused("dtype is 'bf16'", lambda: flashlatent.append_latent(tokens, None, slots, kv_cache, dtype="bf16"))
    refused("format is 'fp16' and to is given",
            lambda: flashlatent.convert_cache(kv_cache, np.empty_like(kv_cache), format="fp16"))
    out = np.empty((2, *kv_cache.shape[2:]), np.float16)
    refused("rows and out are given", lambda: flashlatent.gather_cache(kv_cache, table, begins, rows=2, out=out))
    refused("dtype is 'bf16'", lambda: flashlatent.gather_cache(kv_cache, table, begins, rows=2, dtype="bf16"))
    cache, rows = (kv_cache, kv_cache), np.zeros((2, *kv_cache.shape[2:]), np.float16)
    refused("dtype is 'fp16'", lambda: flashlatent.append_kv(rows, rows, slots, cache, dtype="fp16"))
    refused("rows, keys and values are given",
            lambda: flashlatent.gather_kv(cache, table, begins, rows=2, keys=out, values=out.copy()))
    partial = np.zeros((2, 1, 1, 1, 8), np.float32), np.zeros((2, 1, 1, 1), np.float32)
    refused("dtype is 'bf16'", lambda: flashlatent.combine(*partial, dtype="bf16"))
    bits = np.empty((1, 1, 1, 8), np.uint16)
    refused("dtype is 'fp32'; bf16 and fp16", lambda: flashlatent.combine(*partial, out=bits, dtype="fp32"))


@pytest.mark.parametrize("match, create", [
    ("batch is '2'; an integer", lambda: flashlatent.Problem(batch="2", heads=1, softmax_scale=1)),
    ("softmax_scale is missing; a number", lambda: flashlatent.Problem(batch=1, heads=1)),
    ("head is no argument of Problem\\(\\); 'heads' is near", lambda: flashlatent.Problem(batch=1, head=1)),
    ("problem is None; a flashlatent.Problem", lambda: flashlatent.Plan(None)),
    ("threads is None; an integer", lambda: flashlatent.Step(threads=None)),
    ("kernel is None; a string", call(kernel=None)),
    ("pages is 'x'; an integer", lambda: flashlatent.PagePool("x", 3)),
    ("sequence is None; a flashlatent.Sequence", lambda: flashlatent.PagePool(4, 4).append(None)),
    ("PagePool\\(\\) is called with 3 arguments by position; 2", lambda: flashlatent.PagePool(1, 2, 3)),
])
def test_constructors(match, create):
    refused(match, create, flashlatent.ArgumentTypeError)


@pytest.mark.parametrize("match, change", [
    ("qk_dim is 520; an fp8_656 cache has 576, or 512 without RoPE", {"qk_dim": 520}),
    ("h_kv \\(KV heads\\) is 2; an fp8_656 cache has 1", {"kv_heads": 2}),
    ("max_pages of sparse decode is 3; it must be 0", {"topk": 4, "max_pages": 3}),
])
def test_problems(match, change):
    refused(match, lambda: flashlatent.Problem(**{"batch": 1, "heads": 2, "softmax_scale": 1, "kv_format": "fp8_656",
                                                  **change}))


def test_functions_keep_their_names():
    for function in (flashlatent.append_kv, flashlatent.Step.decode, flashlatent.Plan.schedule):
        assert function.__name__ and function.__doc__
    method = flashlatent.Step().decode
    assert method.__name__ == "decode"


def test_no_cuda_in_pythons_words():
    reason = flashlatent.info()["backends"]["cuda"]["reason"]
    assert "CMake" not in reason and "-D" not in reason


def test_torch():
    torch = pytest.importorskip("torch")
    import flashlatent.torch
    from flashlatent import flash_mla

    case = Case([20, 3])
    q, kv_cache, table, lengths = (torch.from_numpy(array) for array in case.arguments())
    options = case.options()
    native = flashlatent.decode
    refused("block_table is on device meta", lambda: native(q, kv_cache, table.to("meta"), lengths, **options))
    refused("q has the layout torch.sparse_coo", lambda: native(q.to_sparse(), kv_cache, table, lengths, **options))
    operator = flashlatent.torch.decode
    refused("block_table is on meta and q on cpu", lambda: operator(q, kv_cache, table.to("meta"), lengths, **options))
    refused("q is None; an array", lambda: operator(None, kv_cache, table, lengths, **options))
    refused("q is a ndarray; a Tensor", lambda: operator(case.q, kv_cache, table, lengths, **options))
    refused("foo is no argument of decode", lambda: operator(q, kv_cache, table, lengths, foo=1, **options))
    out, lse = operator(*(tensor.to("meta") for tensor in (q, kv_cache, table, lengths)), **options)
    assert out.device.type == "meta" and lse.device.type == "meta"
    metadata, _ = flash_mla.get_mla_metadata()
    drop_in = flash_mla.flash_mla_with_kvcache
    refused("k_cache is None; an array", lambda: drop_in(q, None, table, lengths, case.v_dim, metadata))
    refused("k_cache is fp32", lambda: drop_in(q, kv_cache.float(), table, lengths, case.v_dim, metadata))
    refused("head_dim_v is 999", lambda: drop_in(q, kv_cache, table, lengths, 999, metadata))
