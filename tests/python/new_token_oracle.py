"""New tokens by the definition, in float64 but where the definition rounds: norm, rotation, roundings, quantisation."""

import numpy as np

import flashlatent

RECORDS = {(f["name"], f["scales"]): f for f in flashlatent._native._formats() if f["token_bytes"] > 0}
E4M3 = np.array([m * 2.0**-9 if e == 0 else (8 + m) * 2.0**(e - 10) for e in range(16) for m in range(8)][:127])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def bf16_bits(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(x, dtype):
    """To 16 bits and back; `dtype`: 'bf16' or 'fp16'."""
    x = np.asarray(x, np.float32)
    return from_bits(bf16_bits(x)) if dtype == "bf16" else x.astype(np.float16).astype(np.float32)


def nearest(x, numbers):
    """Codes with a sign bit above them; ties to even codes, numbers beyond the last become it."""
    x = np.asarray(x, np.float64)
    magnitude = np.abs(x)
    middles = (numbers[1:] + numbers[:-1]) / 2
    low, high = np.searchsorted(middles, magnitude, "left"), np.searchsorted(middles, magnitude, "right")
    codes = np.where(low == high, low, np.where(low % 2 == 0, low, high))
    return (codes | np.where(np.signbit(x), 0x80 if len(numbers) > 8 else 8, 0)).astype(np.uint8)


def exponent_of(amax, largest, floor):
    return np.ceil(np.log2(np.maximum(amax.astype(np.float64), floor) / largest)).astype(int)


def normalised(x, epsilon, weight, bias):
    x = x.astype(np.float64)
    if bias is not None:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    x = x if weight is None else x * weight.astype(np.float64)
    return x if bias is None else x + bias.astype(np.float64)


def rotated(x, positions, table, pairs, layout, first):
    """In fp32, each product and sum rounded. x: (tokens, columns)."""
    x, columns = x.astype(np.float32).copy(), table.shape[1]
    half = columns // 2
    angles = table[positions].astype(np.float32)
    cos, sin = (angles[:, :half], angles[:, half:]) if layout == "halves" else (angles[:, 0::2], angles[:, 1::2])
    part = x[:, first:first + columns]
    a, b = (part[:, 0::2], part[:, 1::2]) if pairs == "gptj" else (part[:, :half], part[:, half:])
    a, b = a * cos - b * sin, b * cos + a * sin
    if pairs == "gptj":
        part[:, 0::2], part[:, 1::2] = a, b
    else:
        part[:, :half], part[:, half:] = a, b
    return x


def record_bytes(x, record):
    """(tokens, bytes of a token) of fp32 rows: data, then scales."""
    tokens, scaled = len(x), record["dim"] - record["rope_dim"]
    groups = x[:, :scaled].reshape(tokens, -1, record["group"])
    amax = np.abs(groups).max(-1)
    out = np.zeros((tokens, record["token_bytes"]), np.uint8)
    if record["elements"] == "e2m1":
        scales = nearest(np.clip(amax / np.float32(6), 2.0**-9, 448), E4M3)
        codes = nearest(groups / E4M3[scales][..., None].astype(np.float32), E2M1).reshape(tokens, -1)
        out[:, :scaled // 2] = codes[:, 0::2] | codes[:, 1::2] << 4
    else:
        by_amax = record["scale_kind"] == "ue8m0"
        exponents = exponent_of(amax, 448, 1e-4 if by_amax else 448e-4)
        out[:, :scaled] = nearest(groups * np.exp2(-exponents.astype(float))[..., None], E4M3).reshape(tokens, -1)
        scales = (exponents + 127).astype(np.uint8) if by_amax else \
            np.exp2(exponents.astype(np.float32)).view(np.uint8).reshape(tokens, -1)
    begin = record["data_bytes"] if record["apart"] else record["scale_offset"]
    out[:, begin:begin + scales.shape[1]] = scales
    if record["rope_dim"]:
        rope = bf16_bits(x[:, scaled:])
        out[:, record["rope_offset"]:record["rope_offset"] + 2 * record["rope_dim"]] = rope.view(np.uint8).reshape(tokens, -1)
    return out


def key_bytes(x, index_format):
    """(tokens, bytes of a key) of fp32 rows of 128: codes, then scales."""
    if index_format == "fp8_132":
        exponents = exponent_of(np.abs(x).max(-1, keepdims=True), 448, 1e-4)
        codes = nearest(x * np.exp2(-exponents.astype(float)), E4M3)
        return np.concatenate([codes, np.exp2(exponents.astype(np.float32)).view(np.uint8)], 1)
    groups = x.reshape(len(x), 4, 32)
    exponents = exponent_of(np.abs(groups).max(-1), 6, 6 * 2.0**-126)
    codes = nearest(groups * np.exp2(-exponents.astype(float))[..., None], E2M1).reshape(len(x), 128)
    return np.concatenate([codes[:, 0::2] | codes[:, 1::2] << 4, (exponents + 127).astype(np.uint8)], 1)
