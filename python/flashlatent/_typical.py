"""How long contexts are expected to be (typical_tokens of decode()), for engines."""

import operator
from typing import Any

IN_GRAPHS = 8192  # tokens, for graphs, which are captured before any length is known (docs/log/plans.md)


def rounded(tokens: int) -> int:
    """The next power of two, so that a kernel is chosen anew seldom as contexts grow."""
    return 1 << max(int(tokens) - 1, 0).bit_length()


def of_setting(name: str, value: Any) -> int:
    """What a user set for graphs; IN_GRAPHS if nothing is set; 0: as far as page tables reach."""
    if value is None:
        return IN_GRAPHS
    try:
        tokens = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        tokens = -1
    if not 0 <= tokens < 2**31:
        raise ValueError(f"flashlatent: {name} is {value!r}; 0 (as far as page tables reach) or a positive integer of 31 "
                         "bits is expected")
    return tokens
