"""Ranks on gloo whose calls differ, or of which one is refused: with check_inputs=True all raise, and go on.

python distributed_refusals.py WORLD [environment]: exits with 1 if a rank says something else. `environment`: calls do not ask
for checks, FLASHLATENT_CHECK_INPUTS does. test_distributed.py runs it."""

import datetime
import multiprocessing
import os
import queue
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

import flashlatent
from flashlatent.distributed import ContextParallel

BY_ENVIRONMENT = sys.argv[2:] == ["environment"]
if BY_ENVIRONMENT:
    os.environ["FLASHLATENT_CHECK_INPUTS"] = "1"

WAIT_S = 30  # of a rank for the others; a right answer takes milliseconds


def arrays(lengths=(20, 7), heads=4, batch=2, dtype=torch.float16):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 1, heads, 96, generator=generator)
    kv_cache = torch.randn(8, 4, 1, 96, generator=generator)
    return {"q": q[:batch].to(dtype), "kv_cache": kv_cache.to(dtype),
            "block_table": torch.arange(8, dtype=torch.int32).view(2, 4)[:batch],
            "cache_seqlens": torch.tensor(lengths[:batch], dtype=torch.int32), "softmax_scale": 0.1, "v_dim": 64}


def key_values(heads=4, kv_heads=1):
    given = {name: value for name, value in arrays(heads=heads).items() if name not in ("kv_cache", "v_dim")}
    cache = torch.zeros(8, 4, kv_heads, 96, dtype=torch.float16)
    return {**given, "key_cache": cache, "value_cache": cache.clone()}


def ragged(*begins, **more):
    given = arrays()
    return {**given, "q": given["q"][:, 0], "cu_seqlens_q": torch.tensor(begins, dtype=torch.int32), **more}


def sparse(**more):
    given = arrays()
    del given["block_table"], given["cache_seqlens"]
    return {**given, "indices": torch.zeros(2, 1, 4, dtype=torch.int32), **more}


def plan_of(make):
    return {name: value for name, value in make().items() if name != "softmax_scale"}


def others(last, first=None):
    """What the last rank is given, and the others."""
    return lambda rank, world: last() if rank == world - 1 else (first or last)()


def with_last(make=arrays, **changes):
    """The last rank's arguments changed."""
    return others(lambda: {**make(), **changes}, make)


ME, LAST = "{rank}", "{last}"
# The last rank's and the others' words: DIFFERS of two values, or REFUSED with a reason. The first rank that a rank names as
# another one is rank 0 for the last, and the last one for all others.


def differs(name, of_last, of_others):
    return (f"{name} is {of_last} on this rank, {ME}, and {of_others} on rank 0; ",
            f"{name} is {of_others} on this rank, {ME}, and {of_last} on rank {LAST}; ")


def refused(why):
    return (f"rank {ME} is refused: {why}", f"rank {LAST} is refused, and so this rank, {ME}, which makes the same call: {why}")


RIGHT = ("", "")
F16, BF16 = torch.float16, torch.bfloat16
# name, method, arguments by (rank, world), what the last rank and the others say.
CASES = [
    ("right", "decode", others(arrays), RIGHT),
    ("heads", "decode", others(lambda: arrays(heads=8), arrays), differs("q.shape[-2]", 8, 4)),
    ("batch", "decode", others(lambda: arrays(batch=1), arrays), differs("q.shape[-4]", 1, 2)),
    ("dtype", "decode", others(lambda: arrays(dtype=BF16), arrays), differs("q.dtype", BF16, F16)),
    ("dtypes that no kernel takes", "decode", with_last(q=torch.zeros(2, 1, 4, 96)), differs("q.dtype", torch.float32, F16)),
    ("lengths", "decode", others(lambda: arrays(lengths=(20, 8)), arrays), differs("cache_seqlens[1]", 8, 7)),
    ("v_dim", "decode", with_last(v_dim=32), differs("v_dim", 32, 64)),
    ("scale", "decode", with_last(softmax_scale=1.1), differs("softmax_scale", 1.1, 0.1)),
    ("window", "decode", with_last(window=1), differs("window", 1, 0)),
    ("a window beyond all numbers", "decode", with_last(window=10**400), differs("window", "inf", 0)),
    ("all heads", "decode", with_last(all_heads=True), differs("all_heads", 1, 0)),
    ("indices for a table", "decode", others(sparse, arrays), differs("what names tokens", "indices", "block_table")),
    ("sparse, right", "decode", others(sparse), RIGHT),
    ("keys for a latent", "decode", with_last(kv_cache=None), refused("kv_cache is None")),
    ("sparse of one rank", "decode", others(lambda: sparse(indices=torch.zeros(2, 4, dtype=torch.int32)), sparse),
     refused("indices ")),
    ("a length of topk", "decode",
     others(lambda: sparse(topk_length=torch.tensor([4, 5], dtype=torch.int32)),
            lambda: sparse(topk_length=torch.tensor([4, 4], dtype=torch.int32))), refused("topk_length[1] is 5")),
    ("a table of one rank", "decode", with_last(block_table=torch.zeros(2, 4, dtype=torch.int64)),
     refused("block_table is int64")),
    ("a page of one rank", "decode", with_last(block_table=torch.full((2, 4), 8, dtype=torch.int32)),
     refused("block_table[0, 0] is 8")),
    ("an argument of one rank", "decode", with_last(v_dim="x"), refused("v_dim is 'x'; a whole number from 1 to 4096")),
    ("an option of one rank", "decode", with_last(windw=3), refused("windw")),
    ("no queries", "decode", with_last(q=None), refused("q is a NoneType; a torch.Tensor")),
    ("a q of two dimensions", "decode", with_last(q=torch.zeros(2, 96, dtype=F16)), refused("q is (2, 96)")),
    ("a sparse q", "decode", with_last(q=arrays()["q"].to_sparse()), refused("q is torch.float16 of layout torch.sparse_coo")),
    ("no lengths", "decode", with_last(cache_seqlens=None), refused("cache_seqlens is a NoneType; a torch.Tensor")),
    ("lengths of 64 bits", "decode", with_last(cache_seqlens=torch.tensor([20, 7])),
     refused("cache_seqlens is torch.int64 (2,) on cpu; int32 (2)")),
    ("lengths of no device", "decode", with_last(cache_seqlens=torch.zeros(2, dtype=torch.int32, device="meta")),
     refused("cache_seqlens is torch.int32 (2,) on meta")),
    ("a sink of another length", "decode", with_last(attn_sink=torch.zeros(8)), refused("attn_sink is torch.float32 (8,)")),
    ("check_inputs", "decode", with_last(check_inputs="yes"), refused("check_inputs is 'yes'; True or False")),
    ("overlap", "decode", with_last(overlap="no"), refused("overlap is 'no'; True or False")),
    ("ragged, right", "decode", others(lambda: ragged(0, 1, 2)), RIGHT),
    ("ragged", "decode", others(lambda: ragged(0, 1, 2), arrays), differs("q.shape[-4]", "none", 2)),
    ("ragged queries of others", "decode", others(lambda: ragged(0, 2, 2), lambda: ragged(0, 1, 2)),
     differs("cu_seqlens_q[1]", 2, 1)),
    ("tokens", "decode", others(lambda: ragged(0, 1, 2, tokens=4), lambda: ragged(0, 1, 2, tokens=2)), differs("tokens", 4, 2)),
    ("cu_seqlens_q of 64 bits", "decode",
     others(lambda: ragged(0, 1, 2, cu_seqlens_q=torch.tensor([0, 1, 2])), lambda: ragged(0, 1, 2)),
     refused("cu_seqlens_q is torch.int64")),
    ("another call", None, others(key_values, arrays), differs("the call", "decode_kv", "decode")),
    ("keys and values, right", "decode_kv", others(key_values), RIGHT),
    ("keys of three dimensions", "decode_kv", with_last(key_values, key_cache=torch.zeros(8, 4, 96, dtype=F16)),
     refused("key_cache has 3 dimensions and value_cache 4")),
    ("no values", "decode_kv", with_last(key_values, value_cache=None), refused("value_cache is a NoneType")),
    ("no KV heads", "decode_kv", with_last(key_values, key_cache=torch.zeros(8, 4, 0, 96, dtype=F16)), refused("key_cache is (8, 4, 0, 96)")),
    ("KV heads", "decode_kv", others(lambda: key_values(kv_heads=2), key_values), differs("KV heads", 2, 1)),
    ("values of 32", "decode_kv", with_last(key_values, value_cache=torch.zeros(8, 4, 1, 32, dtype=F16)),
     differs("v_dim", 32, 96)),
    ("plan, right", "plan", others(lambda: plan_of(arrays)), RIGHT),
    ("plan", "plan", others(lambda: {**plan_of(arrays), "kv_cache": None}, lambda: plan_of(arrays)), refused("kv_cache is None")),
    ("plan of others", "plan", others(lambda: plan_of(lambda: arrays(heads=8)), lambda: plan_of(arrays)),
     differs("q.shape[-2]", 8, 4)),
    ("plan_kv, right", "plan_kv", others(lambda: plan_of(key_values)), RIGHT),
    ("plan_kv", "plan_kv", others(lambda: {**plan_of(key_values), "value_cache": None}, lambda: plan_of(key_values)),
     refused("")),
    ("right again", "decode", others(arrays), RIGHT),
]


def ask(call):
    """What a call says; "" if it is right."""
    try:
        call()
    except flashlatent.FlashLatentError as error:
        return str(error)
    return ""


def fault_in(said, expected, rank, world):
    """What is wrong with what a rank says; nothing if it is right."""
    expected = expected[rank != world - 1].format(rank=rank, last=world - 1)
    if said.startswith(expected) and bool(said) == bool(expected):
        return None
    return f"'{said}'; '{expected}' is expected"


def refusals(rank, world, found):
    context = ContextParallel()
    by_default = None if BY_ENVIRONMENT else ContextParallel(check_inputs=True)
    for name, method, make, expected in CASES:
        method = method or ("decode_kv" if rank == world - 1 else "decode")
        given = make(rank, world)
        ways = ((context, {}),) if BY_ENVIRONMENT else ((context, {"check_inputs": True}), (by_default, {}))
        for which, options in ways:
            begin = time.monotonic()
            said = ask(lambda: getattr(which, method)(**{**options, **given}))
            if time.monotonic() - begin > WAIT_S / 2:
                found(f"{name}: the rank waited")
            fault = fault_in(said, expected, rank, world)
            if fault is not None:
                found(f"{name}: {fault}")
    constructors(rank, world, found)


def constructors(rank, world, found):
    last = rank == world - 1
    for name, options, expected in [
        ("run", {"run": 1 + last}, differs("run", 2, 1)),
        ("no run", {"run": 1 - last}, refused("run is 0; a whole number")),
        ("exchange", {"exchange": ("auto", "all_gather")[last]}, differs("exchange", "all_gather", "auto")),
        ("no exchange", {"exchange": ("auto", None)[last]}, refused("exchange is None; auto")),
    ]:
        fault = fault_in(ask(lambda: ContextParallel(check_inputs=not BY_ENVIRONMENT, **options)), expected, rank, world)
        if fault is not None:
            found(f"ContextParallel, {name}: {fault}")
    if not BY_ENVIRONMENT:
        said = ask(lambda: ContextParallel(run=1 + last).decode(**arrays(), check_inputs=True))
        fault = fault_in(said, differs("run", 2, 1), rank, world)
        if fault is not None:
            found(f"run: {fault}")
    alone = dist.new_group([0])
    if rank > 0 and "group has not this process as a member" not in ask(lambda: ContextParallel(alone)):
        found("a group without this process is accepted")


def work(rank, world, store, failures):
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world,
                                timeout=datetime.timedelta(seconds=WAIT_S))
        refusals(rank, world, lambda text: failures.put(f"rank {rank}: {text}"))
        dist.barrier()
    except Exception:
        failures.put(f"rank {rank}: " + traceback.format_exc(limit=-3))
    failures.put(None)


def main():
    world = int(sys.argv[1])
    forked = multiprocessing.get_context("fork")
    failures = forked.Queue()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        ranks = [forked.Process(target=work, args=(rank, world, os.path.join(folder, "store"), failures))
                 for rank in range(world)]
        for rank in ranks:
            rank.start()
        try:
            while found.count(None) < world:
                found.append(failures.get(timeout=4 * WAIT_S))
        except queue.Empty:
            found.append("a rank has ended without a word, or waits")
        for rank in ranks:
            rank.join(timeout=WAIT_S)
            rank.kill()
    found = [text for text in found if text is not None]
    print("\n".join(found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
