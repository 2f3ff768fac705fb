"""What the steps compare with, in float64 and as plain as can be: attention of one query token."""

import numpy as np

SCALE = 192**-0.5  # of the head before absorption: 128 NoPE and 64 RoPE elements


def attention(q, tokens, v_dim=512, scale=SCALE):
    """q (heads, d) over tokens (length, d), whose first v_dim elements are the values.

    Returns out (heads, v_dim) and lse (heads)."""
    q, tokens = np.asarray(q, np.float64), np.asarray(tokens, np.float64)
    if len(tokens) == 0:
        return np.zeros((len(q), v_dim)), np.full(len(q), -np.inf)
    scores = q @ tokens.T * scale
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    return weights / total @ tokens[:, :v_dim], (largest + np.log(total))[:, 0]


def largest_error(out, expected):
    return float(np.abs(np.asarray(out, np.float64) - expected).max())


def to_bf16(x):
    """bf16 as NumPy has it, 16-bit integers: the upper half of a float32's bits, rounded."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)
