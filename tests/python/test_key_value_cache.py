"""Decode of and operations on caches of keys and values, from NumPy and torch, on every device there is."""

import math

import numpy as np
import pytest

import flashlatent
from flashlatent import KeyValueCache
from kv_oracle import KvCase, e4m3_codes, pack, to_dtype, to_numbers
from oracle import bf16_values

try:
    import torch
    from test_torch import DEVICES
except ImportError:
    DEVICES = []


class Place:
    """Whose arrays, and where."""

    def __init__(self, name):
        self.package, _, self.device = name.partition(" ")

    def array(self, array, bf16=True):
        """uint16 is bf16, but for torch if not `bf16`."""
        if array is None or self.package == "numpy":
            return array
        tensor = torch.from_numpy(np.array(array))
        return (tensor.view(torch.bfloat16) if array.dtype == np.uint16 and bf16 else tensor).to(self.device)

    def back(self, array):
        """As NumPy's, bf16 as its bits."""
        if self.package == "numpy":
            return array
        array = array.cpu()
        return (array.view(torch.uint16) if array.dtype == torch.bfloat16 else array).numpy()

    def options(self, case):
        return {"dtype": "bf16"} if self.package == "numpy" and case.dtype == "bf16" else {}


@pytest.fixture(params=["numpy cpu"] + [f"torch {device}" for device in DEVICES])
def place(request):
    return Place(request.param)


def decode(place, case, **options):
    """flashlatent.decode_kv() of a case, checked; options that are arrays are NumPy's."""
    arrays = {name: place.array(value) for name, value in options.items() if isinstance(value, np.ndarray)}
    if case.tokens:
        arrays |= {"cu_seqlens_q": place.array(case.begins), "tokens": max(case.tokens)}
    out, lse = flashlatent.decode_kv(*map(place.array, case.arrays()), softmax_scale=case.scale,
                                     **{**options, **arrays, **place.options(case)})
    assert type(out) is type(arrays.get("cu_seqlens_q", out)) and out.shape[-1] == case.separate[1].shape[-1]
    case.check(to_numbers(place.back(out)), place.back(lse), **options)
    return out, lse


LENGTHS = [0, 1, 15, 16, 17, 70]


@pytest.mark.parametrize("layout", ["separate", "packed"])
@pytest.mark.parametrize("e4m3", [False, True])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_layouts(place, layout, e4m3, dtype):
    out, lse = decode(place, KvCase(LENGTHS, layout=layout, e4m3=e4m3, dtype=dtype))
    assert tuple(out.shape) == (6, 1, 4, 64) and tuple(lse.shape) == (6, 4, 1)


@pytest.mark.parametrize("heads, kv_heads, page_size, d",
                         [(4, 4, 1, 64), (8, 1, 61, 128), (12, 2, 256, 80), (20, 1, 16, 256)])
def test_heads_and_pages(place, heads, kv_heads, page_size, d):
    decode(place, KvCase([3, 0, 90], heads=heads, kv_heads=kv_heads, page_size=page_size, d=d))


@pytest.mark.parametrize("each", [False, True])
def test_e4m3_scales(place, each):
    scales = np.array([0.5, 0.25] if each else [0.5], np.float32)
    case = KvCase([5, 40], e4m3=True, dtype="bf16")
    decode(place, case, key_scale=scales, value_scale=scales[::-1].copy())


OPTIONS = {
    "causal": {"causal": True},
    "window": {"causal": True, "window": 9},
    "soft_cap": {"soft_cap": 1.5},
    "alibi": {"causal": True, "alibi_slopes": 2.0**-np.arange(1, 5, dtype=np.float32)},
    "sink": {"attn_sink": np.array([-1, 0, 2.5, 1], np.float32)},
}
OPTIONS["all"] = {name: value for options in OPTIONS.values() for name, value in options.items()}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("tokens", [3, [3, 1, 0, 2]])
def test_options(place, name, tokens):
    decode(place, KvCase([2, 40, 0, 64], tokens=tokens), **OPTIONS[name])


def test_keys_and_values_of_other_widths():
    decode(Place("numpy cpu"), KvCase([2, 40], d=96, v_dim=64))


def test_outputs_of_the_caller(place):
    case = KvCase([33, 5])
    wide, lse = place.array(np.full((2, 1, 8, 64), 7, np.float16)), place.array(np.zeros((1, 4, 2), np.float32))
    lse = lse.transpose(2, 1, 0) if place.package == "numpy" else lse.permute(2, 1, 0)
    out = wide[:, :, ::2]
    arrays = [place.array(array) for array in case.arrays()]
    problem = flashlatent.Problem.of_kv_arrays(*arrays[:4], softmax_scale=case.scale)
    plan = flashlatent.Plan.like(problem, arrays[0])
    workspace = place.array(np.zeros(plan.workspace_bytes, np.uint8))
    result, same_lse = flashlatent.decode_kv(*arrays, softmax_scale=case.scale, out=out, lse=lse, workspace=workspace)
    assert result is out and same_lse is lse
    case.check(place.back(out), place.back(lse))
    assert (place.back(wide[:, :, 1::2]) == 7).all()


def test_plan_and_step(place):
    case = KvCase([100, 3], dtype="bf16", layout="packed", e4m3=True)
    slopes, scale = np.full(4, 0.1, np.float32), np.array([0.5], np.float32)
    arrays = [place.array(array) for array in case.arrays()]
    options = place.options(case)
    problem = flashlatent.Problem.of_kv_arrays(*arrays[:4], softmax_scale=case.scale, alibi=True, window=30, **options)
    assert problem == flashlatent.Problem(
        batch=2, heads=4, kv_heads=2, qk_dim=64, v_dim=64, page_size=16, max_pages=problem.max_pages, layout="packed",
        kv_format="e4m3", alibi=True, window=30, softmax_scale=case.scale)
    assert problem.layout == "packed" and problem.alibi and problem.window == 30 and problem.soft_cap == 0
    plan = flashlatent.Plan.like(problem, arrays[0])
    plan.schedule(arrays[4])
    given = {"alibi_slopes": place.array(slopes), "key_scale": place.array(scale), "value_scale": place.array(scale)}
    expected = {"window": 30, "alibi_slopes": slopes, "key_scale": scale, "value_scale": scale}
    step = flashlatent.Step()
    for lengths in ([100, 3], [50, 1]):  # a plan stays right when lengths change
        case.cache_seqlens[:] = lengths
        arrays[4] = place.array(case.cache_seqlens)
        out, lse = plan.decode_kv(*arrays, **given)
        case.check(to_numbers(place.back(out)), place.back(lse), **expected)
        out, lse = step.decode_kv(*arrays, softmax_scale=case.scale, window=30, **given, **options)
        case.check(to_numbers(place.back(out)), place.back(lse), **expected)


@pytest.mark.parametrize("sharing", ["auto", "always"])
def test_shared_prefixes(place, sharing):
    if sharing == "always" and place.device != "cpu":
        pytest.skip("always is refused where a kernel can't")
    case = KvCase([300, 290, 310, 280, 40])
    case.block_table[1:4, :16] = case.block_table[0, :16]  # 256 tokens
    arrays = [place.array(array) for array in case.arrays()]
    problem = flashlatent.Problem.of_kv_arrays(*arrays[:4], softmax_scale=case.scale, prefix_sharing=sharing)
    assert problem.prefix_sharing == sharing
    plan = flashlatent.Plan.like(problem, arrays[0])
    for pages in (None, (case.block_table, case.cache_seqlens)):
        plan.schedule(arrays[4], pages=pages)
        out, lse = plan.decode_kv(*arrays)
        case.check(place.back(out), place.back(lse))
    with pytest.raises(flashlatent.InvalidArgumentError, match="pages is a list; a tuple"):
        plan.schedule(arrays[4], pages=[1])
    with pytest.raises(flashlatent.InvalidArgumentError, match="pages.block_table is"):
        plan.schedule(arrays[4], pages=(case.block_table[:2], case.cache_seqlens))
    with pytest.raises(flashlatent.InvalidArgumentError, match="pages.cache_seqlens is missing"):
        plan.schedule(arrays[4], pages=(case.block_table, None))
    off = flashlatent.Plan.like(flashlatent.Problem.of_kv_arrays(*arrays[:4], softmax_scale=case.scale), arrays[0])
    with pytest.raises(flashlatent.InvalidArgumentError, match="pages is given, but .* prefix_sharing 'off'"):
        off.schedule(arrays[4], pages=(case.block_table, case.cache_seqlens))


@pytest.mark.parametrize("tokens, causal", [(1, False), (2, True), (3, True), (3, False)])
def test_plans_with_shared_prefixes_at_other_lengths(place, tokens, causal):
    case = KvCase([900, 900, 900, 40], tokens=tokens)
    case.block_table[1:3, :32] = case.block_table[0, :32]  # 512 tokens
    arrays = [place.array(array) for array in case.arrays()[:4]]
    problem = flashlatent.Problem.of_kv_arrays(*arrays, softmax_scale=case.scale, causal=causal,
                                               prefix_sharing="always")
    plan = flashlatent.Plan.like(problem, arrays[0])
    planned = np.array([600, 600, 600, 40], np.int32)
    plan.schedule(place.array(planned), pages=(case.block_table, planned))
    for lengths in ([600, 600, 600, 40], [601, 601, 601, 39], [664, 664, 664, 40], [536, 536, 536, 40],
                    [900, 880, 512, 7], [511 + tokens, 510 + tokens, 512, 40], [200, 100, 0, 40], [0, 600, 700, 40]):
        case.cache_seqlens = np.array(lengths, np.int32)
        out, lse = plan.decode_kv(*arrays, place.array(case.cache_seqlens))
        case.check(place.back(out), place.back(lse), causal=causal)


def raw(place, array):
    """An array's bytes, whatever its dtype."""
    return np.ascontiguousarray(place.back(array)).view(np.uint8)


def slots_and_rows(seed=0, dtype="bf16"):
    rng = np.random.default_rng(seed)
    slots = rng.permutation(64)[:20].astype(np.int64)
    slots[7] = -1
    return slots, *(to_dtype(rng.standard_normal((20, 2, 64), np.float32) * 100, dtype) for _ in range(2))


@pytest.mark.parametrize("layout", ["separate", "packed"])
@pytest.mark.parametrize("format", ["bf16", "e4m3"])
def test_append_gather_convert(place, layout, format):
    slots, *rows = slots_and_rows()
    rows[0][0, 0, :4] = to_dtype(np.array([np.nan, 1e6, -1e6, np.inf], np.float32), "bf16")
    key_scale, value_scale = np.array([2, 0.5], np.float32), np.array([4], np.float32)
    if format == "e4m3":
        stored = [np.stack([e4m3_codes(bf16_values(row[:, head]), scale[head % len(scale)]) for head in range(2)], 1)
                  for row, scale in zip(rows, (key_scale, value_scale))]
    else:
        stored = rows
    separate = [np.full((4, 16, 2, 64), 0x33, row.dtype) for row in stored]
    kept = slots >= 0
    for cache, row in zip(separate, stored):
        cache.reshape(64, 2, 64)[slots[kept]] = row[kept]
    expected = pack(*separate) if layout == "packed" else separate

    # append_kv
    scales = [place.array(scale) for scale in (key_scale, value_scale)] if format == "e4m3" else [None, None]
    cache = KeyValueCache(*(place.array(np.full_like(plane, 0x33)) for plane in expected), *scales)
    bits = {"dtype": "bf16"} if place.package == "numpy" else {}
    flashlatent.append_kv(place.array(rows[0]), place.array(rows[1]), place.array(slots), cache, **bits)
    for got, plane in zip(cache, expected):
        np.testing.assert_array_equal(raw(place, got), plane.view(np.uint8))

    # gather_kv: two requests, the second past its pages' end
    table, begins = np.array([[3, 0], [1, -1]], np.int32), np.array([0, 30, 50], np.int32)
    arrays = [place.array(array) for array in (table, begins, np.array([2, 0], np.int32))]
    gathered = flashlatent.gather_kv(cache, *arrays, rows=50, format="bf16", **bits)
    for got, plane, scale in zip(gathered, separate, (key_scale, value_scale)):
        values = to_numbers(plane) * (scale[:, None] if format == "e4m3" else 1)
        tokens = values.reshape(64, 2, 64)
        wanted = np.concatenate([tokens[50:], tokens[:16], tokens[16:32], np.zeros((4, 2, 64))])
        np.testing.assert_array_equal(to_numbers(place.back(got)), wanted)  # e4m3 times a power of two: exact in bf16

    # convert_kv: to the other layout, byte for byte, and back from bf16
    other = "separate" if layout == "packed" else "packed"
    holds = bits if format == "bf16" else {}  # e4m3 and fp16 arrays say themselves what they are
    converted = flashlatent.convert_kv(cache, layout=other, key_scale=scales[0], value_scale=scales[1], **holds)
    assert type(converted) is KeyValueCache
    for got, plane in zip(converted, separate if other == "separate" else pack(*separate)):
        np.testing.assert_array_equal(raw(place, got), plane.view(np.uint8))
    wide = flashlatent.convert_kv(cache, format="bf16", **bits)
    back = KeyValueCache(*(place.array(np.zeros_like(plane)) for plane in expected), *scales)
    assert flashlatent.convert_kv(wide, back, **bits) is back
    for got, plane in zip(back, expected):
        np.testing.assert_array_equal(to_numbers(place.back(got)), to_numbers(plane))
    assert np.isnan(to_numbers(separate[0])).any()  # NaN was on the way


@pytest.mark.parametrize("layout", ["separate", "packed"])
@pytest.mark.parametrize("e4m3", [False, True])
def test_copy_pages(place, layout, e4m3):
    case = KvCase([200], layout=layout, e4m3=e4m3, dtype="bf16")
    for before in (case.key_cache, case.value_cache):
        cache = place.array(before)
        flashlatent.copy_pages(cache, cache, place.array(np.array([[0, 3], [1, 2]], np.int32)))
        expected = before.copy()
        expected[[3, 2]] = before[[0, 1]]
        np.testing.assert_array_equal(raw(place, cache), expected.view(np.uint8))


def test_append_then_decode(place):
    """What an engine does: tokens come one after the other, each is decoded with what is there."""
    case = KvCase([0, 0], kv_heads=4, page_size=8)
    case.separate = tuple(np.full((5, 8, 4, 64), np.nan, np.float16) for _ in range(2))
    case.block_table = np.array([[4, 1], [0, 2]], np.int32)
    rng = np.random.default_rng(1)
    cache = KeyValueCache(*map(place.array, case.separate))
    for n in range(11):
        tokens = [rng.standard_normal((2, 4, 64), np.float32).astype(np.float16) for _ in range(2)]
        pages = case.block_table[:, n // 8]
        for plane, rows in zip(case.separate, tokens):
            plane[pages, n % 8] = rows
        flashlatent.append_kv(*map(place.array, tokens), place.array(pages * 8 + n % 8), cache)
        case.cache_seqlens[:] = n + 1
        arrays = [place.array(array) for array in (case.q, case.block_table, case.cache_seqlens)]
        out, lse = flashlatent.decode_kv(arrays[0], cache.keys, cache.values, *arrays[1:], softmax_scale=case.scale)
        case.check(place.back(out), place.back(lse))


def decode_of(case, **changes):
    names = ["q", "key_cache", "value_cache", "block_table", "cache_seqlens"]
    return flashlatent.decode_kv(**{**dict(zip(names, case.arrays())), "softmax_scale": 1.0, **changes})


@pytest.mark.parametrize("match, changes", [
    ("value_cache is fp16 .*; expected", {"value_cache": np.zeros((3, 16, 64), np.float16)}),
    ("key_cache is fp16 .*; expected", {"key_cache": np.zeros((3, 16, 64), np.float16)}),
    ("value_cache is uint8", {"value_cache": np.zeros((9, 16, 2, 64), np.uint8)}),
    ("soft_cap is -1", {"soft_cap": -1.0}),
    ("window is -3", {"window": -3}),
    ("alibi_slopes is fp32 \\(3\\)", {"alibi_slopes": np.zeros(3, np.float32)}),
    ("key_scale is given.*not e4m3", {"key_scale": np.ones(1, np.float32)}),
    ("block_table is int64", {"block_table": np.zeros((2, 3), np.int64)}),
])
def test_refused_decode(match, changes):
    with pytest.raises(flashlatent.InvalidArgumentError, match=match):
        decode_of(KvCase([20, 3]), **changes)


def call_gather(cache, **options):
    return flashlatent.gather_kv(cache, np.zeros((1, 1), np.int32), np.zeros(2, np.int32), **options)


@pytest.mark.parametrize("match, call", [
    ("cache is a .*ndarray; flashlatent.KeyValueCache", lambda keys, values: call_gather(keys, rows=1)),
    ("cache.values is", lambda keys, values: call_gather((keys, values[:1]), rows=1)),
    ("keys, values and rows are missing", lambda keys, values: call_gather((keys, values))),
    ("format is 'int4'; bf16 and fp16", lambda keys, values: call_gather((keys, values), rows=1, format="int4")),
    ("format is missing and the cache is e4m3",
     lambda keys, values: call_gather((keys.view(np.uint8), values.view(np.uint8)), rows=1)),
    ("cache.key_scale is given, but the cache is fp16",
     lambda keys, values: call_gather((keys, values, np.ones(1, np.float32)), rows=1)),
    ("slot_mapping",
     lambda keys, values: flashlatent.append_kv(keys[0, :1].copy(), values[0, :1].copy(), np.array([999]),
                                                (keys, values))),
    ("cache.keys is .* overlaps keys",
     lambda keys, values: flashlatent.append_kv(keys[0, :1], values[0, :1], np.array([0]), (keys, values))),
    ("values is fp16",
     lambda keys, values: flashlatent.append_kv(keys[0, :1], values[0, :1, :1], np.array([0]), (keys, values))),
    ("layout is 'flat'", lambda keys, values: flashlatent.convert_kv((keys, values), layout="flat")),
    ("layout is 'packed' and the keys' d is 12; multiples of 8",
     lambda keys, values: flashlatent.convert_kv((keys[..., :12], values), layout="packed")),
    ("to is given beside layout",
     lambda keys, values: flashlatent.convert_kv((keys, values), (keys, values), layout="packed")),
    ("to.keys is .* overlaps from.keys", lambda keys, values: flashlatent.convert_kv((keys, values), (keys, values))),
    ("cache.keys is read-only", lambda keys, values: flashlatent.append_kv(
        keys[0, :1], values[0, :1], np.array([0]), (np.broadcast_to(keys, keys.shape), values))),
    ("layout is 'flat'; latent, separate and packed",
     lambda keys, values: flashlatent.Problem(batch=1, heads=4, layout="flat", softmax_scale=1)),
    ("prefix sharing is 'maybe'; off, auto and always",
     lambda keys, values: flashlatent.Problem(batch=1, heads=4, max_pages=1, prefix_sharing="maybe", softmax_scale=1)),
    ("window of sparse decode is 3; it must be 0",
     lambda keys, values: flashlatent.Problem(batch=1, heads=4, topk=1, window=3, softmax_scale=1)),
])
def test_refused_operations(match, call):
    with pytest.raises(flashlatent.InvalidArgumentError, match=match) as raised:
        call(np.zeros((3, 16, 2, 64), np.float16), np.zeros((3, 16, 2, 64), np.float16))
    assert "\n" not in str(raised.value)
