"""Two contexts spread over several ranks, a GPU each, or over processes on a CPU: every rank caches its own tokens,
and each gets the outputs of its own heads.

    torchrun --nproc-per-node 4 examples/distributed_decode.py

Each rank compares its outputs with decode over whole contexts.
"""

import sys

import flashlatent

try:
    import torch
    import torch.distributed as dist
except ImportError:
    sys.exit("distributed_decode: torch is not installed; this example uses its process groups")

from flashlatent.distributed import ContextParallel

PAGE_SIZE, DIM, SCALE = 64, 576, 192**-0.5
HEADS = 4  # a rank; all ranks together have HEADS * world
LENGTHS = (1000, 300)


def cache_of(rows, slot_mapping, pages):
    """A cache that holds those of the tokens whose slot is not -1."""
    cache = torch.zeros(pages, PAGE_SIZE, 1, DIM, dtype=rows.dtype, device=rows.device)
    flashlatent.append_latent(rows[:, :512], rows[:, 512:], slot_mapping, cache)
    return cache


def table_of(lengths, device):
    """A page table with as many pages for each request as the longest has."""
    columns = -(-max(lengths) // PAGE_SIZE)
    return torch.arange(len(lengths) * columns, dtype=torch.int32, device=device).view(-1, columns)


def main():
    gpus = flashlatent.info()["backends"]["cuda"]["available"]
    dist.init_process_group("nccl" if gpus else "gloo")
    rank = dist.get_rank()
    if gpus:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    device = torch.device("cuda" if gpus else "cpu")

    # The same numbers on every rank: the tokens of both contexts, one after another, and the queries of all heads.
    numbers = torch.Generator().manual_seed(0)
    rows = torch.randn(sum(LENGTHS), DIM, generator=numbers).bfloat16().to(device)
    q = torch.randn(len(LENGTHS), 1, HEADS * dist.get_world_size(), DIM, generator=numbers).bfloat16().to(device)
    positions = torch.cat([torch.arange(length) for length in LENGTHS]).to(device)
    requests = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS)).to(device)
    cache_seqlens = torch.tensor(LENGTHS, dtype=torch.int32, device=device)  # of whole contexts

    context = ContextParallel(run=1)  # tokens go to the ranks in turns, one by one
    own = [context.tokens.local_lengths(length) for length in LENGTHS]
    table = table_of(own, device)  # room for the rank's own tokens
    slots = context.tokens.slot_mapping(positions, requests, table, PAGE_SIZE)  # -1: another rank's
    cache = cache_of(rows, slots, table.numel())

    mine = slice(rank * HEADS, (rank + 1) * HEADS)
    plan = context.plan(q[:, :, mine], cache, table, cache_seqlens)  # once per step
    out, lse = context.decode(q[:, :, mine], cache, table, cache_seqlens, softmax_scale=SCALE, plan=plan)  # once per layer

    table = table_of(LENGTHS, device)
    slots = table[requests, positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE
    whole = cache_of(rows, slots, table.numel())
    expected, expected_lse = flashlatent.decode(q, whole, table, cache_seqlens, softmax_scale=SCALE)
    error = (out.float() - expected[:, :, mine].float()).abs().max().item()
    lse_error = (lse - expected_lse[:, mine]).abs().max().item()
    print(f"rank {rank}: {sum(own)} of {sum(LENGTHS)} tokens, out {tuple(out.shape)}, "
          f"largest difference {error:.1e}, of lse {lse_error:.1e}", flush=True)
    dist.destroy_process_group()
    if not (error < 2**-6 and lse_error < 1e-3):
        sys.exit(1)


if __name__ == "__main__":
    main()
