"""append_latent, append_index_keys and quantize_index_queries with norm, rotation and ratio, beside the definition."""

import numpy as np
import pytest

import flashlatent
import new_token_oracle as oracle
from new_token_oracle import RECORDS

PAGES, PAGE_SIZE, POSITIONS = 5, 4, 60
TARGETS = [*RECORDS, ("e4m3", None), ("bf16", None), ("fp16", None)]
SHARE = 0.005  # of bytes that may differ where a sum's order shows, which is fp32's


def table_of(columns, layout, seed=0, dtype=np.float32):
    angles = np.random.default_rng(seed).uniform(0, 2 * np.pi, (POSITIONS, columns // 2))
    cos, sin = np.cos(angles), np.sin(angles)
    both = np.concatenate([cos, sin], 1) if layout == "halves" else np.stack([cos, sin], 2).reshape(POSITIONS, -1)
    return both.astype(dtype)


def case(tokens, columns, dtype, seed=1):
    """(what is passed, its numbers): of every size, zeros among them."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((tokens, columns)) * 2.0**random.integers(-14, 8, (tokens, 1))
    x[0, :columns // 2] = 0
    if dtype == "bf16":
        bits = oracle.bf16_bits(x)
        return bits, oracle.from_bits(bits)
    x = x.astype(np.float16 if dtype == "fp16" else np.float32)
    return x, x.astype(np.float32)


def empty_cache(target, dim):
    name, scales = target
    if target in RECORDS:
        record = RECORDS[target]
        unit, size = record["page_unit"], record["token_bytes"]
        page = -(-PAGE_SIZE * size // unit) * unit
        memory = np.full((PAGES, page), 0xA5, np.uint8)
        view = np.lib.stride_tricks.as_strided(memory, (PAGES, PAGE_SIZE, 1, size), (page, size, size, 1))
        return view, {"kv_format": name} if scales is None else {"kv_format": name, "scales": scales}
    if name == "e4m3":
        return np.full((PAGES, PAGE_SIZE, 1, dim), 0xA5, np.uint8), {"kv_format": "e4m3", "kv_scale": np.array([0.03], np.float32)}
    bits = np.full((PAGES, PAGE_SIZE, 1, dim), 0xA5A5, np.uint16)
    return (bits, {"dtype": "bf16"}) if name == "bf16" else (bits.view(np.float16), {})


def stored(cache, options):
    """All slots' bytes, (slots, bytes of a token)."""
    table, ends = np.arange(PAGES, dtype=np.int32)[None], np.array([0, PAGES * PAGE_SIZE], np.int32)
    rows = flashlatent.gather_cache(cache, table, ends, rows=PAGES * PAGE_SIZE, **options)
    return rows.reshape(PAGES * PAGE_SIZE, -1).view(np.uint8)


def expected(x, target):
    if target in RECORDS:
        return oracle.record_bytes(x, RECORDS[target])
    if target[0] == "e4m3":
        return oracle.nearest(x / np.float32(0.03), oracle.E4M3)
    return (oracle.bf16_bits(x) if target[0] == "bf16" else x.astype(np.float16)).view(np.uint8).reshape(len(x), -1)


def roundings(target, dtype, rounding):
    """(after the norm, before elements are quantised)"""
    if rounding == "once":
        return False, False
    if target in RECORDS and RECORDS[target]["rope_dim"] == 0:
        return True, False
    return dtype != "fp32", True


def chain(x, target, dtype, rounding, rotate):
    """What is quantised, of normalised rows."""
    sixteen = "fp16" if dtype == "fp16" else "bf16"
    normed, scaled = roundings(target, dtype, rounding)
    x = oracle.rounded(x, sixteen) if normed else x.astype(np.float32)
    if rotate is not None:
        x = oracle.rotated(x, *rotate)
    if scaled and target[0] not in ("bf16", "fp16"):
        count = x.shape[1] - (RECORDS[target]["rope_dim"] if target in RECORDS else 0)
        x[:, :count] = oracle.rounded(x[:, :count], sixteen)
    return x


def slots_of(tokens):
    slots = np.random.default_rng(5).permutation(PAGES * PAGE_SIZE)[:tokens]
    slots[2] = -1
    return slots


def dim_of(target):
    return RECORDS[target]["dim"] if target in RECORDS else 512


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("pairs, layout", [("gptj", "halves"), ("neox", "halves"), ("gptj", "interleaved"),
                                           ("neox", "interleaved")])
def test_rotated_tokens(target, dtype, pairs, layout):
    dim = dim_of(target)
    table = table_of(64, layout)
    passed, x = case(9, dim, dtype)
    slots, positions = slots_of(9), np.random.default_rng(2).integers(0, POSITIONS, 9)
    for rounding in ("engine", "once"):
        for split in (False, True):
            cache, options = empty_cache(target, dim)
            said = options | ({"dtype": "bf16"} if dtype == "bf16" else {})
            before = stored(cache, options)
            latent, rope = (passed[:, :dim - 64], passed[:, dim - 64:]) if split else (passed, None)
            flashlatent.append_latent(latent, rope, slots.astype(np.int32 if split else np.int64), cache,
                                      positions=positions.astype(np.int64 if split else np.int32), table=table, pairs=pairs,
                                      table_layout=layout, rounding=rounding, **said)
            rows = chain(x, target, dtype, rounding, (positions, table, pairs, layout, dim - 64))
            live = slots >= 0
            before[slots[live]] = expected(rows, target)[live]
            np.testing.assert_array_equal(stored(cache, options), before)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("bias", [False, True])
def test_normalised_tokens(target, dtype, bias):
    dim = dim_of(target)
    random = np.random.default_rng(3)
    weight, shift = random.uniform(0.5, 2, dim).astype(np.float32), random.standard_normal(dim).astype(np.float16)
    table = table_of(64, "halves")
    passed, x = case(9, dim, dtype)
    slots, positions = slots_of(9), random.integers(0, POSITIONS, 9)
    cache, options = empty_cache(target, dim)
    said = options | ({"dtype": "bf16"} if dtype == "bf16" else {})
    before = stored(cache, options)
    flashlatent.append_latent(passed, None, slots, cache, norm=1e-6, norm_weight=weight, norm_bias=shift if bias else None,
                              positions=positions, table=table, **said)
    rows = chain(oracle.normalised(x, 1e-6, weight, shift if bias else None), target, dtype, "engine",
                 (positions, table, "gptj", "halves", dim - 64))
    live = slots >= 0
    wanted = before.copy()
    wanted[slots[live]] = expected(rows, target)[live]
    found = stored(cache, options)
    assert np.array_equal(found[~np.isin(np.arange(len(found)), slots)], before[~np.isin(np.arange(len(found)), slots)])
    assert (found != wanted).sum() <= SHARE * wanted[slots[live]].size
    if target[0] == "fp16":
        wanted, found = (rows[slots[live]].view(np.float16).astype(float) for rows in (wanted, found))
        assert np.abs(found - wanted).max() <= 2.0**-10 * np.abs(wanted).max()


def test_a_norm_covers_the_latent_alone():
    """DeepSeek V3: kv_a_layernorm over 512 columns, RoPE columns rotated."""
    passed, x = case(6, 576, "bf16")
    weight = np.random.default_rng(3).uniform(0.5, 2, 512).astype(np.float32)
    table, positions = table_of(64, "halves"), np.arange(6)
    options = {"positions": positions, "table": table, "dtype": "bf16"}
    caches = [np.zeros((PAGES, PAGE_SIZE, 1, 576), np.uint16) for _ in range(2)]
    flashlatent.append_latent(passed[:, :512], passed[:, 512:], np.arange(6), caches[0], norm=1e-6, norm_weight=weight,
                              **options)
    flashlatent.append_latent(passed[:, :512], passed[:, 512:], np.arange(6), caches[1], **options)
    rows = [oracle.from_bits(cache.reshape(-1, 576)[:6]) for cache in caches]
    np.testing.assert_array_equal(rows[0][:, 512:], rows[1][:, 512:])
    wanted = oracle.normalised(x[:, :512], 1e-6, weight, None)
    assert np.abs(rows[0][:, :512] - wanted).max() <= 2.0**-8 * np.abs(wanted).max()


@pytest.mark.parametrize("ratio", [2, 4, 128])
@pytest.mark.parametrize("integers", [np.int32, np.int64])
def test_only_ends_of_groups_are_stored(ratio, integers):
    tokens = 12
    passed, x = case(tokens, 512, "bf16")
    positions = np.array([0, 1, 2, 3, 7, 127, 255, 31, -1, 12, 383, 511], integers)
    table = np.concatenate([table_of(64, "halves", seed) for seed in range(9)])  # 540 positions
    target = ("nvfp4_288", "token")
    cache, options = empty_cache(target, 512)
    before = stored(cache, options)
    slots = np.arange(tokens) + 3
    flashlatent.append_latent(passed, None, slots, cache, positions=positions, table=table, ratio=ratio, dtype="bf16", **options)
    ends = (positions >= 0) & ((positions + 1) % ratio == 0)
    assert ends.any() and not ends.all()
    rows = chain(x, target, "bf16", "engine", (np.maximum(positions // ratio * ratio, 0), table, "gptj", "halves", 448))
    before[slots[ends]] = expected(rows, target)[ends]
    np.testing.assert_array_equal(stored(cache, options), before)
    # Without a table only the ratio counts.
    plain = np.zeros((PAGES, PAGE_SIZE, 1, 512), np.uint16)
    flashlatent.append_latent(passed, None, slots, plain, positions=positions, ratio=ratio, dtype="bf16")
    np.testing.assert_array_equal(plain.reshape(-1, 512)[slots], np.where(ends[:, None], passed, 0))


def test_whole_tokens_are_their_parts():
    for target in [key for key in RECORDS if RECORDS[key]["rope_dim"]]:
        dim = dim_of(target)
        passed, _ = case(6, dim, "fp16")
        caches = []
        for latent, rope in ((passed, None), (passed[:, :dim - 64], passed[:, dim - 64:])):
            cache, options = empty_cache(target, dim)
            flashlatent.append_latent(latent, rope, np.arange(6), cache, **options)
            caches.append(stored(cache, options))
        np.testing.assert_array_equal(*caches)


def test_not_finite_elements():
    passed = np.ones((1, 512), np.float32)
    passed[0, 3], passed[0, 100], passed[0, 500] = np.inf, np.nan, -np.inf
    for target in RECORDS:
        dim = dim_of(target)
        row = np.ones((1, dim), np.float32)
        row[0, :512] = passed
        cache, options = empty_cache(target, dim)
        flashlatent.append_latent(row, None, np.array([7]), cache, **options)
        code = stored(cache, options)[7]
        if RECORDS[target]["elements"] == "e2m1":
            assert code[1] >> 4 == 7 and code[50] & 15 == 0 and code[250] & 15 == 15
        else:
            assert code[3] == code[100] == 0x7F


KEYS = [("fp8_132", "last", "gptj"), ("fp8_132", "first", "neox"), ("mxfp4_68", "last", "gptj"), ("mxfp4_68", "first", "neox"),
        ("fp8_132", "first", "gptj")]


@pytest.mark.parametrize("index_format, columns, pairs", KEYS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("norm", [None, "rms", "layer"])
def test_index_keys(index_format, columns, pairs, dtype, norm):
    random = np.random.default_rng(4)
    weight = random.uniform(0.5, 2, 128).astype(np.float32)
    bias = random.standard_normal(128).astype(np.float32) if norm == "layer" else None
    passed, x = case(11, 128, dtype)
    size = 132 if index_format == "fp8_132" else 68
    table, positions = table_of(64, "halves"), random.integers(0, POSITIONS, 11)
    slots = slots_of(11)
    for rounding in ("engine", "once"):
        cache = np.full((PAGES, -(-PAGE_SIZE * size // 16) * 16), 0xA5, np.uint8)
        before = cache.copy()
        options = {} if norm is None else {"norm": 1e-6, "norm_weight": weight, "norm_bias": bias}
        flashlatent.append_index_keys(passed, slots, cache, index_format=index_format, page_size=PAGE_SIZE,
                                      positions=positions, table=table, pairs=pairs, rotary_columns=columns,
                                      rounding=rounding, dtype="bf16" if dtype == "bf16" else None, **options)
        y = x if norm is None else oracle.normalised(x, 1e-6, weight, bias)
        sixteen = "fp16" if dtype == "fp16" else "bf16"
        y = oracle.rounded(y, sixteen) if rounding == "engine" and dtype != "fp32" else y.astype(np.float32)
        y = oracle.rotated(y, positions, table, pairs, "halves", 0 if columns == "first" else 64)
        y = oracle.rounded(y, sixteen) if rounding == "engine" else y
        rows, data = oracle.key_bytes(y, index_format), size - 4
        for row, slot in zip(rows, slots):
            if slot < 0:
                continue
            page, place = divmod(slot, PAGE_SIZE)
            before[page, place * data:(place + 1) * data] = row[:data]
            begin = PAGE_SIZE * data + 4 * place
            before[page, begin:begin + 4] = row[data:]
        assert (cache != before).sum() <= (0 if norm is None else SHARE * rows.size)


@pytest.mark.parametrize("index_format, columns, pairs", KEYS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("weight_dtype", ["fp32", "bf16"])
def test_index_queries(index_format, columns, pairs, dtype, weight_dtype):
    random = np.random.default_rng(6)
    tokens, heads = 5, 24
    passed, x = case(tokens * heads, 128, dtype)
    weights = random.standard_normal((tokens, heads)).astype(np.float32)
    given = weights
    if weight_dtype == "bf16":
        given = oracle.bf16_bits(weights)
        weights = oracle.from_bits(given)
    table, positions = table_of(64, "interleaved"), random.integers(0, POSITIONS, tokens)
    said = "bf16" if dtype == "bf16" or weight_dtype == "bf16" else None
    options = {"positions": positions, "table": table, "pairs": pairs, "table_layout": "interleaved",
               "rotary_columns": columns, "index_format": index_format, "dtype": said}
    codes, scales, out = flashlatent.quantize_index_queries(passed.reshape(tokens, heads, 128), given, **options)
    first = 0 if columns == "first" else 64
    y = oracle.rotated(x, np.repeat(positions, heads), table, pairs, "interleaved", first)
    y[:, first:first + 64] = oracle.rounded(y[:, first:first + 64], dtype)
    rows = oracle.key_bytes(y, index_format)
    factors = np.float32(128**-0.5), np.float32(heads**-0.5)
    if index_format == "fp8_132":
        assert scales is None and np.array_equal(codes.reshape(-1, 128), rows[:, :128])
        weights = weights * np.ascontiguousarray(rows[:, 128:]).view(np.float32).reshape(tokens, heads)
    else:
        assert np.array_equal(codes.reshape(-1, 64), rows[:, :64]) and np.array_equal(scales.reshape(-1, 4), rows[:, 64:])
    assert np.array_equal(out, weights * factors[0] * factors[1])
    # Two leading dimensions, and heads outermost in memory.
    four = {**options, "positions": positions.reshape(1, tokens)}
    turned = np.ascontiguousarray(passed.reshape(tokens, heads, 128).swapaxes(0, 1)).swapaxes(0, 1)
    again = flashlatent.quantize_index_queries(turned[None], given[None], **four)
    assert np.array_equal(again[0][0], codes) and np.array_equal(again[2][0], out)


def test_keys_and_queries_choose_tokens():
    """A key is found by the query that was made of the same vector."""
    random = np.random.default_rng(7)
    keys = random.standard_normal((16, 128)).astype(np.float16)
    table = table_of(64, "halves")
    cache = np.zeros((4, 4, 132), np.uint8)
    positions = np.arange(16)
    rotate = {"table": table, "norm": 1e-6}
    flashlatent.append_index_keys(keys, np.arange(16), cache, positions=positions, **rotate)
    q = np.repeat(keys[5:6, None], 8, 1)
    codes, _, weights = flashlatent.quantize_index_queries(q, np.ones((1, 8), np.float32), positions=positions[5:6], table=table)
    chosen = flashlatent.index_topk(codes[:, None], weights[:, None], cache, np.arange(4, dtype=np.int32)[None],
                                    np.array([16], np.int32), topk=1)[0]
    assert chosen.item() == 5


@pytest.mark.parametrize("options, message", [
    ({"norm": -1.0}, "norm is -1; a finite epsilon"),
    ({"norm": float("inf")}, "norm is inf; a finite epsilon"),
    ({"norm": 1e-40}, "norm is 9.99.*e-41; a finite epsilon of 0 .no norm., or of 1.2e-38 or more"),
    ({"norm_weight": np.ones(512, np.float32)}, "norm_weight is given and norm is 0"),
    ({"norm": 1e-6, "norm_weight": np.ones(448, np.float32)}, "norm_weight is .*wrong shape"),
    ({"norm": 1e-6, "norm_bias": np.ones(512, np.float64)}, "norm_bias"),
    ({"norm": 1e-6, "norm_weight": np.ones(512, np.int32)}, "norm_weight is .*fp32, bf16 and fp16 are accepted"),
    ({"positions": None}, "table is given and positions are missing"),
    ({"positions": None, "table": None, "ratio": 4}, "ratio is 4 and positions are missing"),
    ({"ratio": 0}, "ratio is 0; 1 to"),
    ({"positions": np.zeros(3, np.int32)}, "positions is .*wrong shape"),
    ({"positions": np.array([0, 60])}, "positions has 60 for token 1; table has 60 positions"),
    ({"positions": np.array([-1, 0])}, "positions has -1 for token 0"),
    ({"table": np.zeros((60, 24), np.float32)}, "table is .*a multiple of 16 columns, up to 512"),
    ({"table": np.zeros((60, 528), np.float32)}, "table is .*a multiple of 16 columns, up to 512"),
    ({"pairs": "llama"}, "pairs is 'llama'; 'gptj' and 'neox' are accepted"),
    ({"rounding": "twice"}, "rounding is 'twice'; 'engine' and 'once' are accepted"),
    ({"latent": np.zeros((2, 512), np.int32)}, "latent is .*bf16, fp16 and fp32 are accepted"),
    ({"latent": np.zeros((2, 440), np.float16)}, "latent"),
    ({"latent": np.zeros((2, 448), np.float16)}, "rope is missing"),
])
def test_refusals(options, message):
    arguments = {"latent": np.zeros((2, 512), np.float16), "positions": np.zeros(2, np.int32),
                 "table": np.zeros((POSITIONS, 64), np.float32)} | options
    cache, said = empty_cache(next(key for key in RECORDS if key[0] == "fp8_584"), 512)
    before = cache.copy()
    with pytest.raises(flashlatent.FlashLatentError, match=message):
        flashlatent.append_latent(arguments.pop("latent"), None, np.array([1, 2]), cache, **arguments, **said)
    assert np.array_equal(cache, before)


def test_padding_may_have_any_position():
    cache, said = empty_cache(next(key for key in RECORDS if key[0] == "fp8_584"), 512)
    flashlatent.append_latent(np.zeros((2, 512), np.float16), None, np.array([-1, 2]), cache, positions=np.array([99, 3]),
                              table=np.zeros((POSITIONS, 64), np.float32), **said)


def test_odd_columns_are_refused():
    with pytest.raises(flashlatent.FlashLatentError, match="latent is .*multiples of 8 are accepted, up to 1024"):
        flashlatent.append_latent(np.zeros((1, 20), np.float32), None, np.array([0]), np.zeros((1, 1, 1, 20), np.float16))


@pytest.mark.parametrize("options, message", [
    ({"q": np.zeros((2, 8, 64), np.float16)}, "q is .*wrong shape"),
    ({"q": np.zeros((2, 128), np.float16)}, "q is .*expected bf16 or fp16"),
    ({"weights": np.zeros((2, 7), np.float32)}, "weights is .*wrong shape"),
    ({"weights": np.zeros((2, 8), np.int32)}, "weights is .*bf16, fp16 and fp32"),
    ({"table": None}, "positions are given and table is missing"),
    ({"positions": np.array([0, 60])}, "positions has 60 for token 1"),
    ({"rotary_columns": "middle"}, "rotary_columns is 'middle'; 'last' and 'first'"),
    ({"index_format": "fp4"}, "fp4"),
    ({"scales": np.zeros((2, 8, 4), np.uint8)}, "scales is given and format is fp8_132"),
    ({"codes": np.zeros((2, 8, 64), np.uint8)}, "codes is .*wrong shape"),
])
def test_query_refusals(options, message):
    arguments = {"q": np.zeros((2, 8, 128), np.float16), "weights": np.zeros((2, 8), np.float32),
                 "positions": np.zeros(2, np.int32), "table": np.zeros((POSITIONS, 64), np.float32)} | options
    with pytest.raises(flashlatent.FlashLatentError, match=message):
        flashlatent.quantize_index_queries(arguments.pop("q"), arguments.pop("weights"), **arguments)
