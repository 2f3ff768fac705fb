"""python -m flashlatent.report.layout_values FILE: writes the document that pictures of layouts are drawn from.

It has the library's formats of latent caches, and small examples whose places the library's functions compute. It needs
the built package and torch; drawing needs neither.
"""

import json
import sys


def values():
    """The document."""
    import torch
    from flashlatent import _native
    from flashlatent.distributed import Interleaving

    table, lengths, page_size = [[5, 0, 2], [7, -1, -1]], [10, 3], 4
    whole = Interleaving(rank=0, world=1)  # which holds every token: slots of a cache that is not shared
    slots = [whole.slot_mapping(torch.arange(n), torch.full((n,), request), torch.tensor(table), page_size).tolist()
             for request, n in enumerate(lengths)]
    positions, world, run = list(range(18)), 3, 2
    ranks = Interleaving(rank=0, world=world, run=run)
    return {
        "formats": _native._formats(),
        "page_tokens": 4,
        "slots": {"page_size": page_size, "pages": 8, "block_table": table, "cache_seqlens": lengths, "slots": slots,
                  "indices": [slots[0][1], slots[0][6], -1, slots[0][9]]},
        "two_caches": {"tokens": 32, "window": 8, "ratio": 4, "chosen": [0, 3, 4]},
        "ranks": {"world": world, "run": run, "rank_of": [ranks.rank_of(p) for p in positions],
                  "slot_of": [ranks.slot_of(p) for p in positions]},
    }


def text():
    """The document as a file has it."""
    return json.dumps(values(), indent=1) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.partition("\n")[0])
    with open(sys.argv[1], "w") as file:
        file.write(text())
