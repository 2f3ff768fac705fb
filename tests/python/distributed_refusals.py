"""Two ranks on gloo whose calls differ, or of which one is refused: with check_inputs=True both raise, and go on.

python distributed_refusals.py: exits with 1 if a rank says something else. test_distributed.py runs it."""

import datetime
import multiprocessing
import os
import re
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist

import flashlatent
from flashlatent.distributed import ContextParallel


def arrays(lengths=(20, 7), heads=4, batch=2, dtype=torch.float16):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 1, heads, 96, generator=generator)
    kv_cache = torch.randn(8, 4, 1, 96, generator=generator)
    return [q[:batch].to(dtype), kv_cache.to(dtype), torch.arange(8, dtype=torch.int32).view(2, 4)[:batch],
            torch.tensor(lengths[:batch], dtype=torch.int32)]


def long_table(rank):
    given = arrays()
    if rank == 1:
        given[2] = given[2].long()
    return given


# name, arrays by rank, options by rank, what rank 0 and rank 1 say; "": the call is right.
CASES = [
    ("right", lambda rank: arrays(), {}, "", ""),
    ("heads", lambda rank: arrays(heads=2 + 2 * rank), {}, "q.shape[-2] is 2 on this rank, 0, and 4 on rank 1",
     "q.shape[-2] is 4 on this rank, 1, and 2 on rank 0"),
    ("batch", lambda rank: arrays(batch=2 - rank), {}, "q.shape[-4] is 2 on", "q.shape[-4] is 1 on"),
    ("dtype", lambda rank: arrays(dtype=(torch.float16, torch.bfloat16)[rank]), {}, "torch.float16 on this rank",
     "torch.bfloat16 on this rank"),
    ("lengths", lambda rank: arrays(lengths=(20, 7 + rank)), {}, "cache_seqlens[1] is 7 on this rank, 0, and 8 on rank 1",
     "cache_seqlens[1] is 8 on"),
    ("v_dim", lambda rank: arrays(), {"v_dim": lambda rank: 32 + 32 * rank}, "v_dim is 32 on", "v_dim is 64 on"),
    ("scale", lambda rank: arrays(), {"softmax_scale": lambda rank: 0.1 + rank}, "softmax_scale is 0.1 on this rank, 0, and "
     "1.1 on rank 1", "softmax_scale is 1.1 on"),
    ("window", lambda rank: arrays(), {"window": lambda rank: rank}, "window is 0 on", "window is 1 on"),
    ("a table of one rank", long_table, {}, "rank 1 refuses the arguments of a call that this rank, 0, makes",
     "block_table is int64"),
    ("an argument of one rank", lambda rank: arrays(), {"v_dim": lambda rank: "x" if rank == 0 else 64},
     "v_dim is 'x'; a whole number from 1 to 4096", "rank 0 refuses the arguments"),
    ("lengths of one rank", lambda rank: arrays()[:3] + [None if rank else arrays()[3]], {},
     "cache_seqlens[0] is 20 on this rank, 0, and -1 on rank 1", "cache_seqlens is a NoneType; int32 (2) is expected"),
    ("right again", lambda rank: arrays(), {}, "", ""),
]


def ask(context, make, options, rank):
    """What a call says; "" if it is right."""
    chosen = {"softmax_scale": 0.1, "v_dim": 64, **{name: value(rank) for name, value in options.items()}}
    try:
        context.decode(*make(rank), check_inputs=True, **chosen)
    except flashlatent.InvalidArgumentError as error:
        return str(error)
    return ""


def work(rank, store, failures):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=60))
    try:
        for name, make, options, *expected in CASES:
            said = ask(ContextParallel(), make, options, rank)
            if expected[rank] not in said or (said and not expected[rank]):
                failures.put(f"rank {rank}: {name}: '{said}'; '{expected[rank]}' is expected")
        said = ask(ContextParallel(run=1 + rank), lambda rank: arrays(), {}, rank)
        if not re.match(rf"run is {1 + rank} on this rank, {rank}, and {2 - rank} on rank {1 - rank}", said):
            failures.put(f"rank {rank}: run: {said}")
        alone = dist.new_group([0])
        if rank == 1:
            try:
                ContextParallel(alone)
                failures.put("a group without this process is accepted")
            except flashlatent.InvalidArgumentError as error:
                if "group has not this process as a member" not in str(error):
                    failures.put(str(error))
        dist.barrier()
    except Exception:
        failures.put(traceback.format_exc(limit=-3))
    failures.put(None)


def main():
    forked = multiprocessing.get_context("fork")
    failures = forked.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [forked.Process(target=work, args=(rank, os.path.join(folder, "store"), failures)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        found = []
        while found.count(None) < 2:
            found.append(failures.get(timeout=120))
        for rank in ranks:
            rank.join()
    print("\n".join(text for text in found if text is not None))
    sys.exit(len(found) > 2)


if __name__ == "__main__":
    main()
