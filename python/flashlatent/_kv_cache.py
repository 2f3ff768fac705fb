"""The cache of MHA, GQA or MQA: keys and values apart."""

from typing import Any, NamedTuple, Optional


class KeyValueCache(NamedTuple):
    """A paged cache of keys and values, bf16, fp16, or bytes that are e4m3 numbers, times a scale.

    Separate: keys (pages, page_size, h_kv, d_qk), values (pages, page_size, h_kv, d_v). Packed: keys (pages, h_kv, d_qk
    / x, page_size, x), x elements being 16 bytes, and values (pages, h_kv, d_v, page_size). A plain tuple of the four
    will do wherever a KeyValueCache is expected.
    """

    keys: Any
    values: Any
    key_scale: Optional[Any] = None  # e4m3: fp32 (1) or (h_kv) on the cache's device; 1 if None
    value_scale: Optional[Any] = None
