"""Arguments of a wrong type, missing, unknown or without effect: refused by name, in Python's words."""

import ctypes
import fractions
import warnings

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
    refused("format is 'fp16' and to is .*; format is for a cache that is made",
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
    ("pages is True; an integer is expected", lambda: flashlatent.PagePool(True, 3)),
    ("topk is False; an integer is expected", lambda: flashlatent.Problem(batch=1, heads=1, softmax_scale=1, topk=False)),
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


def test_problems_are_keys():
    fields = {"batch": 1, "heads": 2, "softmax_scale": 0.0, "max_pages": 4}
    problem = flashlatent.Problem(**fields)
    assert {problem: 1}[flashlatent.Problem(**{**fields, "softmax_scale": -0.0})] == 1
    assert len({problem, flashlatent.Problem(**fields), flashlatent.Problem(**{**fields, "typical_tokens": 5})}) == 2


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
    for name in ("typical_tokens", "window", "v_dim"):
        refused(f"{name} is True; an integer is expected",
                lambda: operator(q, kv_cache, table, lengths, **{**options, name: True}))
    refused("softmax_scale is True; a number", lambda: operator(q, kv_cache, table, lengths, **{**options, "softmax_scale": True}))
    refused("window is 10000000000000000000000.*; an integer of 64 bits",
            lambda: operator(q, kv_cache, table, lengths, window=10**22, **options))
    refused("window is 1.5; an integer", lambda: operator(q, kv_cache, table, lengths, window=1.5, **options))
    refused("foo is no argument of decode", lambda: operator(q, kv_cache, table, lengths, foo=1, **options))
    out, lse = operator(*(tensor.to("meta") for tensor in (q, kv_cache, table, lengths)), **options)
    assert out.device.type == "meta" and lse.device.type == "meta"
    metadata, _ = flash_mla.get_mla_metadata()
    drop_in = flash_mla.flash_mla_with_kvcache
    refused("k_cache is None; an array", lambda: drop_in(q, None, table, lengths, case.v_dim, metadata))
    refused("k_cache is fp32", lambda: drop_in(q, kv_cache.float(), table, lengths, case.v_dim, metadata))
    refused("extra_k_cache is given, but extra_indices_in_kvcache, int32 \\(batch, s_q, topk\\) is missing",
            lambda: drop_in(q, kv_cache, table, lengths, case.v_dim, metadata, extra_k_cache=kv_cache))
    refused("softmax_scale is True; a number", lambda: drop_in(q, kv_cache, table, lengths, case.v_dim, metadata, None, True))
    refused("k_cache is torch.uint8 \\(\\); expected", lambda: flash_mla.flash_mla_with_kvcache_fp8(
        q, torch.zeros((), dtype=torch.uint8), table, lengths, 512, metadata))
    refused("head_dim_v is 999", lambda: drop_in(q, kv_cache, table, lengths, 999, metadata))


def is_number(array):
    """Older NumPy (2.0) takes an array of one element for a number, newer NumPy (2.4) does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return isinstance(float(array), float)
        except TypeError:
            return False


@pytest.mark.parametrize("match, change", [
    ("softmax_scale is a ndarray; a number", {"softmax_scale": np.array([0.1, 0.2])}),
    pytest.param("softmax_scale is a ndarray; a number", {"softmax_scale": np.array([0.1])},
                 marks=pytest.mark.skipif(is_number(np.array([0.1])), reason="this NumPy takes it for a number")),
    ("softmax_scale is 1000.*; a number", {"softmax_scale": 10**400}),
    ("causal is np.True_; True or False", {"causal": np.True_}),
    ("window is True; an integer is expected", {"window": True}),
    ("typical_tokens is True; an integer is expected", {"typical_tokens": True}),
    ("v_dim is False; an integer is expected", {"v_dim": False}),
    ("softmax_scale is True; a number is expected", {"softmax_scale": True}),
    ("threads is True; an integer is expected", {"threads": True}),
    ("shard is \\(0, 2\\); a tuple of 3 integers", {"shard": (0, 2)}),
    ("shard is 'abc'; a tuple of 3 integers", {"shard": "abc"}),
    ("shard is \\(0, 1.5, 1\\); a tuple of 3 integers", {"shard": (0, 1.5, 1)}),
    ("other is no argument of decode\\(\\); there are q, kv_cache", {"other": 1}),
    ("softmax_scal is no argument of decode\\(\\); 'softmax_scale' is near", {"softmax_scal": 1}),
])
def test_what_is_said_of_numbers_and_names(match, change):
    refused(match, call(**change), flashlatent.ArgumentTypeError)


VANISHES = "that is 0 in fp32, and 0 or a magnitude of at least 1.2e-38 is expected"
OVERFLOWS = "that is infinite in fp32, and a magnitude of at most 3.4e38 is expected"


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("match, change", [
    (f"softmax_scale is 1e-60; {VANISHES}", {"softmax_scale": 1e-60}),
    (f"softmax_scale is -1e-46; {VANISHES}", {"softmax_scale": -1e-46}),
    (f"softmax_scale is 1e[+]39; {OVERFLOWS}", {"softmax_scale": 1e39}),
    (f"softmax_scale is 1000.*; {OVERFLOWS}", {"softmax_scale": 10**60}),
    (f"softmax_scale is .*1e-60.*; {VANISHES}", {"softmax_scale": np.float64(1e-60)}),
    (f"softmax_scale is .*; {VANISHES}", {"softmax_scale": fractions.Fraction(1, 10**60)}),
    (f"empty_lse is -1e[+]39; {OVERFLOWS}", {"empty_lse": -1e39}),
    (f"q_norm is 1e-60; {VANISHES}", {"q_norm": 1e-60}),
])
def test_numbers_that_fp32_does_not_hold(function, match, change):
    refused(match, call(function, **change), flashlatent.ArgumentTypeError)


def test_numbers_that_fp32_does_not_hold_elsewhere():
    problem = {"batch": 1, "heads": 16, "softmax_scale": 0.1, "max_pages": 4}
    refused(f"soft_cap is 1e-60; {VANISHES}", lambda: flashlatent.Problem(**problem, soft_cap=1e-60))
    q = np.zeros((1, 4, 512), np.float16)
    refused(f"softmax_scale is 1e-60; {VANISHES}", lambda: flashlatent.sparse_prefill(
        q, np.zeros((8, 1, 512), np.float16), np.zeros((1, 1, 2), np.int32), softmax_scale=1e-60))
    refused(f"norm is 1e-60; {VANISHES}", lambda: flashlatent.prepare_queries(q, norm=1e-60))
    refused(f"norm is 1e-60; {VANISHES}", lambda: flashlatent.append_latent(
        q[:, 0], None, np.zeros(1, np.int32), np.zeros((2, 4, 1, 512), np.float16), norm=1e-60))
    refused(f"norm is 1e-60; {VANISHES}", lambda: flashlatent.append_index_keys(
        np.zeros((1, 128), np.float16), np.zeros(1, np.int32), np.zeros((2, 132 * 4), np.uint8), page_size=4, norm=1e-60))


@pytest.mark.parametrize("change", [{"empty_lse": float("inf")}, {"softmax_scale": -0.0},
                                    {"softmax_scale": 1}, {"softmax_scale": np.float32(0.1)}, {"q_norm": 1.2e-38},
                                    {"softmax_scale": 3.4028235e38}, {"softmax_scale": 1e-44}])
def test_numbers_that_fp32_holds(change):
    call(**change)()


def test_missing_arguments_of_functions_in_python():
    array = np.zeros((1, 1, 1, 8), np.float16)
    refused("kv_cache is missing; an array is", lambda: flashlatent.decode(array), flashlatent.ArgumentTypeError)
    refused("softmax_scale is missing; a number is", lambda: flashlatent.decode(array, array, None),
            flashlatent.ArgumentTypeError)
    refused("decode\\(\\) is called with 5 arguments by position; 4", lambda: flashlatent.decode(*[array] * 5),
            flashlatent.ArgumentTypeError)
    refused("key_cache is missing; an array is", lambda: flashlatent.decode_kv(array), flashlatent.ArgumentTypeError)


def test_entries_out_of_range():
    problem = flashlatent.Problem(batch=2, heads=1, softmax_scale=1)
    refused("lengths is a list; 2147483648 is in it, and integers from -2147483648 to 2147483647",
            lambda: flashlatent.describe_plan(problem, [1, 2**31], workers=4), flashlatent.ArgumentTypeError)
    refused("lengths is a generator; a sequence of integers",
            lambda: flashlatent.describe_plan(problem, (n for n in (1, 2)), workers=4), flashlatent.ArgumentTypeError)
    refused("contents is a list; -1 is in it, and integers from 0 to 18446744073709551615",
            lambda: flashlatent.PagePool(4, 16).create([-1], 20), flashlatent.ArgumentTypeError)
    refused("kernel is 'x'; cpu has cpu_dense", lambda: flashlatent.describe_plan(problem, [1, 2], workers=4, kernel="x"),
            flashlatent.UnsupportedError)


def test_objects_that_are_none_of_ours():
    refused("lengths is ''; a sequence of integers", lambda: flashlatent.describe_plan(
        flashlatent.Problem(batch=0, heads=1, softmax_scale=1), "", workers=4), flashlatent.ArgumentTypeError)
    refused("batch is a list; a sequence of flashlatent.Sequence", lambda: flashlatent.PagePool(4, 4).write_page_table(
        [1], 4), flashlatent.ArgumentTypeError)
    array = np.zeros((1, 1, 1, 8), np.float16)
    refused("decode\\(\\) is called with None, a ndarray, .*; an object that was made by calling its class",
            lambda: flashlatent.Plan.decode(None, array, array), flashlatent.ArgumentTypeError)


def test_threads_are_bounded():
    refused("threads is 1000000; 0, which means all, to 4096", call(threads=10**6))


def test_masked_arrays():
    case = Case([20, 3])
    q = np.ma.array(case.arguments()[0], mask=True)
    refused("q is a masked array, whose mask is not read; q.filled", call(q=q))
    plain = call(q=q.data)()
    assert np.isfinite(plain[1]).all()


def test_elements_are_named_as_numpy_does():
    refused("block_table has elements of type bool; int32", call(block_table=np.zeros((2, 3), bool)))
    refused("q has elements of type >f2; bf16", call(q=Case([20, 3]).arguments()[0].astype(">f2")))


def test_a_capsule_that_is_none():
    class Odd:
        __dlpack__ = lambda self, **options: 5  # noqa: E731
        __dlpack_device__ = lambda self: (1, 0)  # noqa: E731

    refused("q is a .*Odd, whose __dlpack__\\(\\) returns no capsule", call(q=Odd()))
    Odd.__dlpack_device__ = lambda self: "cpu"
    refused("q is a .*Odd, whose __dlpack_device__\\(\\) returns no pair", call(q=Odd()))


def test_arrays_of_ctypes():
    """Their buffers have no strides."""
    case = Case([20, 3])
    q, kv_cache, block_table, cache_seqlens = case.arguments()
    expected = flashlatent.decode(q, kv_cache, block_table, cache_seqlens, **case.options())
    lengths = (ctypes.c_int32 * 2)(*cache_seqlens.tolist())
    table = np.ctypeslib.as_ctypes(block_table.copy())
    for found, wanted in zip(flashlatent.decode(q, kv_cache, table, lengths, **case.options()), expected):
        np.testing.assert_array_equal(found, wanted)


def test_what_is_written_has_memory_of_its_own():
    q, kv_cache, block_table, cache_seqlens = Case([20, 3]).arguments()
    batch, s_q, heads, _ = q.shape
    d = 32
    options = {"softmax_scale": 0.1, "v_dim": d}
    run = lambda **change: lambda: flashlatent.decode(q, kv_cache, block_table, cache_seqlens, **options, **change)
    room = np.zeros(4096, np.uint8)
    out = room[:batch * s_q * heads * d * 2].view(q.dtype).reshape(batch, s_q, heads, d)
    lse = room[:batch * heads * s_q * 4].view(np.float32).reshape(batch, heads, s_q)
    refused("lse is fp32 .* overlaps out", run(out=out, lse=lse))
    refused("out is .* overlaps q", run(out=q[..., :d]))
    refused("out is .* elements share memory", run(
        out=np.lib.stride_tricks.as_strided(out, out.shape, (0, *out.strides[1:]))))
    lengths = np.zeros(64, np.int32)
    refused("lse is .* overlaps cache_seqlens", lambda: flashlatent.decode(
        q, kv_cache, block_table, lengths[:batch], lse=lengths.view(np.float32)[:batch * heads * s_q].reshape(lse.shape),
        **options))
    # Rows in turns are apart: q and out as slices of one array.
    both = np.zeros((*q.shape[:-1], q.shape[-1] + d), q.dtype)
    both[..., :q.shape[-1]] = q
    expected = run()()
    given = flashlatent.decode(both[..., :q.shape[-1]], kv_cache, block_table, cache_seqlens, out=both[..., q.shape[-1]:],
                               **options)
    np.testing.assert_array_equal(given[0], expected[0])


def test_prefill_and_merged_results_have_memory_of_their_own():
    q, rows = np.zeros((2, 4, 64), np.float16), np.zeros((5, 1, 64), np.float16)
    numbers = np.zeros((2, 4), np.float32)
    refused("lse is .* overlaps max_logits", lambda: flashlatent.sparse_prefill(
        q, rows, np.zeros((2, 1, 3), np.int32), softmax_scale=1, v_dim=64, max_logits=numbers, lse=numbers))
    parts, lses = np.zeros((3, 2, 1, 4, 8), np.float32), np.zeros((3, 2, 4, 1), np.float32)
    refused("out is .* overlaps partial_out", lambda: flashlatent.combine(parts, lses, out=parts[0]))
    refused("lse is .* overlaps partial_lse", lambda: flashlatent.combine(parts, lses, lse=lses[0]))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_torch_does_not_name():
    torch = pytest.importorskip("torch")
    import flashlatent.torch as operators

    cache, table, begins = torch.zeros(2, 4, 1, 64).half(), torch.zeros(1, 2).int(), torch.tensor([0, 2]).int()
    key_cache = torch.zeros(2, 4, 2, 64).half()
    quantised = torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8)
    parts = torch.zeros(2, 1, 1, 2, 8), torch.zeros(2, 1, 2, 1)
    for match, call in [
        ("partial_out is None; an array", lambda: operators.combine(None, parts[1])),
        ("partial_out is \\(8,\\); 5 dimensions", lambda: operators.combine(parts[0][0, 0, 0, 0], parts[1])),
        ("dtype is a layout; a torch.dtype", lambda: operators.combine(*parts, None, torch.strided)),
        ("kv_cache is None; an array", lambda: operators.convert_cache(None, torch.float16)),
        ("kv_cache is \\(\\); 4 dimensions", lambda: operators.convert_cache(torch.tensor(3.0), torch.float16)),
        ("kv_cache is \\(2, 4\\); 4 dimensions", lambda: operators.gather_cache(cache[:, :, 0, 0], table, begins, 2)),
        ("rows is -1; it must be from 0", lambda: operators.gather_cache(cache, table, begins, -1)),
        ("kv_cache is torch.qint8 on cpu; plain", lambda: operators.gather_cache(quantised, table, begins, 2)),
        ("value_cache is None; an array", lambda: operators.gather_kv(key_cache, None, table, begins, 2)),
        ("key_cache is \\(64,\\); 4 or 5 dim", lambda: operators.gather_kv(key_cache[0, 0, 0], key_cache, table, begins, 2)),
        ("key_cache is None; an array", lambda: operators.convert_kv(None, key_cache)),
        ("layout is 'x'; separate and packed", lambda: operators.convert_kv(key_cache, key_cache, "x")),
        ("q is None; an array", lambda: operators.decode(None, cache, table, begins[1:], softmax_scale=1)),
    ]:
        refused(match, call)


LATENT = {"batch": 1, "heads": 1, "softmax_scale": 1, "max_pages": 1}


@pytest.mark.parametrize("match, create", [
    (r"sm_scale is no argument of decode\(\); 'softmax_scale' is what it is called here", call(sm_scale=1)),
    (r"scale is no argument of decode\(\); 'softmax_scale' is what", call(scale=1)),
    (r"block_tables is no argument of decode\(\); 'block_table' is what", call(block_tables=1)),
    (r"seq_lens is no argument of decode\(\); 'cache_seqlens' is what", call(seq_lens=1)),
    (r"sinks is no argument of decode\(\); 'attn_sink' is what", call(sinks=1)),
    (r"k_scale is no argument of decode\(\); 'kv_scale' is what", call(k_scale=1)),
    (r"return_lse is no argument of decode\(\); lse is always returned", call(return_lse=True)),
    (r"num_heads is no argument of Problem\(\); 'heads' is what", lambda: flashlatent.Problem(num_heads=1)),
    (r"scale is no argument of Problem\(\); 'softmax_scale' is what", lambda: flashlatent.Problem(scale=1)),
    (r"stream is no argument of Plan\(\); Plan.schedule\(\), Plan.decode\(\) and Plan.decode_kv\(\) take it",
     lambda: flashlatent.Plan(flashlatent.Problem(**LATENT), stream=0)),
    (r"workspace is no argument of Plan\(\); Plan.decode\(\) and Plan.decode_kv\(\) take it",
     lambda: flashlatent.Plan(flashlatent.Problem(**LATENT), workspace=0)),
    (r"sm_scale is no argument of Plan\(\); Problem\(\) takes it, as 'softmax_scale'",
     lambda: flashlatent.Plan(flashlatent.Problem(**LATENT), sm_scale=0)),
    (r"causal is no argument of decode\(\); Problem\(\) takes it",
     lambda: flashlatent.Plan(flashlatent.Problem(**LATENT)).decode(1, 2, causal=True)),
    (r"stream is no argument of Step\(\); Step.decode\(\) and Step.decode_kv\(\) take it",
     lambda: flashlatent.Step(stream=0)),
    (r"num_blocks is no argument of PagePool\(\); 'pages' is what", lambda: flashlatent.PagePool(num_blocks=4)),
    (r"k_pe is no argument of append_latent\(\); 'rope' is what", lambda: flashlatent.append_latent(k_pe=4)),
])
def test_hints_go_by_meaning(match, create):
    refused(match, create, flashlatent.ArgumentTypeError)


def test_hints_of_operators():
    torch = pytest.importorskip("torch")
    import flashlatent.torch

    case = Case([20, 3])
    arrays = [torch.from_numpy(array) for array in case.arguments()]
    refused(r"sinks is no argument of decode\(\); 'attn_sink' is what",
            lambda: flashlatent.torch.decode(*arrays, sinks=None, **case.options()), flashlatent.ArgumentTypeError)


def test_names_that_hints_give_are_arguments():
    """Each is one of some function's, and none is itself another package's name for the same."""
    from flashlatent import _hints, _native
    from flashlatent._arguments import parameters

    functions = [member for member in vars(_native).values() if type(member).__name__ == "CheckedCall"]
    functions += [method for owner in vars(_native).values() if isinstance(owner, type) for method in
                  (getattr(member, "__func__", member) for member in vars(owner).values())
                  if type(method).__name__ == "CheckedCall"]
    known = {parameter.name for function in functions for parameter in parameters(function)}
    assert set(_hints.MEANT) <= known
    assert all(name not in others for name, others in _hints.MEANT.items())


@pytest.mark.parametrize("name, here", [("fp8_ds_mla", "fp8_656 here, and fp8_584"), ("fp8_e4m3", "e4m3 here"),
                                        ("float16", "fp16 here, of kv_format plain")])
def test_formats_by_other_names(name, here):
    refused(f"kv_format is '{name}'; plain, fp8_656.*; '{name}' is {here}",
            lambda: flashlatent.Problem(**LATENT, kv_format=name))
    cache = np.zeros((1, 4, 1, 576), np.float16)
    refused(f"format is '{name}'; bf16, .*; '{name}' is {here}",
            lambda: flashlatent.convert_cache(cache, format=name))


def test_fake_tensors():
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    import flashlatent.torch

    case = Case([20, 3])
    arrays = [torch.from_numpy(array) for array in case.arguments()]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(array) for array in arrays]
        refused("q is a .*FakeTensor, which has a shape and no data; the operators of flashlatent.torch take it",
                lambda: flashlatent.decode(*fakes, **case.options()))
        out, lse = flashlatent.torch.decode(*fakes, **case.options())
        assert out.shape == (2, 1, *out.shape[2:]) and type(out).__name__ == "FakeTensor"
    refused("block_table is a .*FakeTensor", lambda: flashlatent.decode(*arrays[:2], fakes[2], arrays[3], **case.options()))


def test_rows_of_sparse_prefill_are_query_tokens():
    q, kv = np.zeros((3, 2, 576), np.float16), np.zeros((9, 1, 576), np.float16)
    indices, lengths = np.zeros((3, 1, 4), np.int32), np.array([4, 0, 9], np.int32)
    refused(r"topk_length\[2\] is 9; query token 2 may have 0 to topk = 4",
            lambda: flashlatent.sparse_prefill(q, kv, indices, softmax_scale=1.0, topk_length=lengths))
