"""Plans and results of operators, with real and fake tensors, for latent caches and for keys and values."""

import torch

from .._native import Plan, Problem, Step

step = Step(stateless=True)


def planned(problem, q, lengths, extra_lengths=None, cu_seqlens_q=None):
    planner = step.find(problem, q)
    storage = q.new_empty(planner.plan_bytes, dtype=torch.uint8)
    planner.schedule(lengths, extra_lengths=extra_lengths, cu_seqlens_q=cu_seqlens_q, like=q, plan=storage)
    return storage


def plan_of_fakes(q, cu_seqlens_q, tokens, q_rope=None, **fields):
    """A fake plan. If extents are symbols, its size is a symbol, too."""
    columns = q.shape[-1] if q_rope is None else q.shape[-1] + q_rope.shape[-1]
    if tokens is None:
        tokens = max(q.shape[0], 1) if cu_seqlens_q is not None else q.shape[1]
    fields |= {"heads": q.shape[-2], "qk_dim": columns, "tokens": tokens}
    if any(isinstance(field, torch.SymInt) for field in fields.values()):
        size = torch.library.get_ctx().new_dynamic_size()
    else:
        problem = Problem(**fields, softmax_scale=1.0, ragged=cu_seqlens_q is not None,
                          dtype="fp16" if q.dtype == torch.float16 else "bf16",
                          q_dtype="e4m3" if q.element_size() == 1 else None)
        size = Plan(problem, device=str(q.device)).plan_bytes
    return q.new_empty(size, dtype=torch.uint8)


def results_of_fakes(q, kv_cache, block_table=None, cache_seqlens=None, *, v_dim=512, cu_seqlens_q=None, tokens=None,
                     **options):
    out = q.new_empty((*q.shape[:-1], v_dim), dtype=torch.bfloat16 if q.element_size() == 1 else q.dtype)
    if cu_seqlens_q is None:
        batch, tokens, heads = q.shape[:3]
    else:
        batch, heads = cu_seqlens_q.shape[0] - 1, q.shape[1]
        tokens = torch.sym_max(q.shape[0], 1) if tokens is None else tokens
    return out, q.new_empty((batch, heads, tokens), dtype=torch.float32)
