"""PyTorch operators: torch.ops.flashlatent.*, for torch.compile(fullgraph=True) and CUDA graphs.

    plan = flashlatent.torch.plan(q, kv_cache, block_table, cache_seqlens)          # once a step
    out, lse = flashlatent.torch.decode(q, kv_cache, block_table, cache_seqlens,
                                        softmax_scale=192**-0.5, plan=plan)         # once a layer

Tensors lie on one device, a GPU or the CPU; work goes to its current stream, memory comes from torch's allocator.
Nothing is kept between calls, so that any threads and streams may call at once. Captured in a CUDA graph, plan()
plans at each replay for the lengths that are then in memory. There is no gradient: decode is inference.
"""

import inspect
from typing import Optional, Tuple

import torch
from torch import Tensor

from . import _edges, _native
from ._errors import InvalidArgumentError
from ._native import Plan, Problem, Step
from ._torch_call import call as _call
from ._torch_call import tensors as _tensors

__all__ = [
    "append_index_keys", "append_kv", "append_latent", "combine", "convert_cache", "convert_kv", "copy_pages",
    "decode", "decode_kv", "decode_kv_out", "decode_out", "finish_outputs", "gather_cache", "gather_kv", "index_topk",
    "index_topk_out", "merge_topk", "plan", "plan_kv", "prepare_queries", "sparse_prefill", "sparse_prefill_out",
]

_step = Step(stateless=True)
_library = torch.library.Library("flashlatent", "DEF")
_TOKENS = ("Tensor? block_table=None, Tensor? cache_seqlens=None, *, int v_dim=512, bool causal=False, "
           "Tensor? indices=None, Tensor? topk_length=None, Tensor? cu_seqlens_q=None, SymInt? tokens=None, "
           "bool batch_invariant=False, int window=0, Tensor? extra_kv_cache=None, Tensor? extra_indices=None, "
           "Tensor? extra_topk_length=None, Tensor? extra_block_table=None, Tensor? extra_cache_seqlens=None, "
           "int? page_size=None, int? extra_page_size=None, str products='auto', int[]? shard=None, "
           "int typical_tokens=0, str? kv_format=None, str? scales=None, str? extra_kv_format=None, ")
_DECODE = _TOKENS + "Tensor? kv_scale=None, Tensor? q_scale=None, float softmax_scale, Tensor? attn_sink=None, Tensor? plan=None, bool check_inputs=False"
_KV = ("Tensor q, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor cache_seqlens, *, "
       "bool causal=False, int window=0, Tensor? cu_seqlens_q=None, SymInt? tokens=None, "
       "bool batch_invariant=False, int[]? shard=None, int typical_tokens=0")
_CALLS = "int calls_per_plan=0"
_DECODE_KV = _KV + (", float softmax_scale, float soft_cap=0., Tensor? alibi_slopes=None, Tensor? key_scale=None, "
                    "Tensor? value_scale=None, Tensor? attn_sink=None, Tensor? plan=None, bool check_inputs=False")

_SPARSE_PREFILL = ("Tensor q, Tensor kv, Tensor indices, *, float softmax_scale, int v_dim=512, "
                   "Tensor? topk_length=None, Tensor? attn_sink=None, Tensor? extra_kv_cache=None, "
                   "Tensor? extra_indices=None, Tensor? extra_topk_length=None, int? page_size=None, "
                   "int? extra_page_size=None, Tensor? kv_scale=None, str? kv_format=None, str? scales=None, "
                   "str? extra_kv_format=None, bool check_inputs=False")

_INDEX_TOPK = ("Tensor q, Tensor weights, Tensor index_cache, Tensor block_table, Tensor cache_seqlens, *, int topk, "
               "str index_format='fp8_132', int? page_size=None, bool causal=False, Tensor? q_scale=None, "
               "Tensor? cu_seqlens_q=None, Tensor? candidates=None, int candidate_block=8, int best_blocks=0, "
               "Tensor? slot_table=None, int slot_page_size=0")


def _define(schema, real, fake):
    """Registers an operator for both devices, and its fake implementation."""
    name = schema.partition("(")[0]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, real, key)

    def checked_fake(*args, **options):
        _check_device(_tensors(getattr(torch.ops.flashlatent, name), args, options))
        return fake(*args, **options)

    torch.library.register_fake(f"flashlatent::{name}", checked_fake, lib=_library)


def _check_device(tensors):
    """Refuses tensors on several devices; for a fake call torch would take any one of them."""
    first, *others = tensors
    for name in others:
        if tensors[name].device != tensors[first].device:
            raise InvalidArgumentError(f"{name} is on {tensors[name].device} and {first} on {tensors[first].device}; "
                                       "one device is expected")


# Options pass through by name: the schemas above say which there are.

def _planned(problem, q, lengths, extra_lengths=None, cu_seqlens_q=None):
    planner = _step.find(problem, q)
    storage = q.new_empty(planner.plan_bytes, dtype=torch.uint8)
    planner.schedule(lengths, extra_lengths=extra_lengths, cu_seqlens_q=cu_seqlens_q, like=q, plan=storage)
    return storage


def _plan(q, kv_cache, block_table=None, cache_seqlens=None, *, topk_length=None, extra_topk_length=None,
          extra_cache_seqlens=None, **options):
    # No plan depends on softmax_scale or attn_sink.
    problem = Problem.of_arrays(q, kv_cache, block_table, softmax_scale=1.0, **options)
    return _planned(problem, q, cache_seqlens if problem.topk is None else topk_length,
                    extra_cache_seqlens if extra_topk_length is None else extra_topk_length,
                    options.get("cu_seqlens_q"))


def _plan_of_fakes(q, cu_seqlens_q, tokens, **fields):
    """A fake plan. Where extents are symbols its size is a symbol, too."""
    if tokens is None:
        tokens = max(q.shape[0], 1) if cu_seqlens_q is not None else q.shape[1]
    fields |= {"heads": q.shape[-2], "qk_dim": q.shape[-1], "tokens": tokens}
    if any(isinstance(field, torch.SymInt) for field in fields.values()):
        size = torch.library.get_ctx().new_dynamic_size()
    else:
        problem = Problem(**fields, softmax_scale=1.0, ragged=cu_seqlens_q is not None,
                          dtype="fp16" if q.dtype == torch.float16 else "bf16",
                          q_dtype="e4m3" if q.element_size() == 1 else None)
        size = Plan(problem, device=str(q.device)).plan_bytes
    return q.new_empty(size, dtype=torch.uint8)


def _format(kv_cache, said=None):
    """What a latent cache is of: of bytes its last dimension tells where `said` does not."""
    if said is not None:
        return said
    if kv_cache.element_size() > 1:
        return "plain"
    if kv_cache.dim() != 4:
        return "fp8_584"
    return {656: "fp8_656", 576: "e4m3", 512: "e4m3", 288: "nvfp4_288"}.get(kv_cache.shape[-1], "fp8_584")


def _plan_fake(q, kv_cache, block_table=None, cache_seqlens=None, *, indices=None, topk_length=None,
               cu_seqlens_q=None, tokens=None, extra_kv_cache=None, extra_indices=None, extra_topk_length=None,
               extra_block_table=None, extra_cache_seqlens=None, page_size=None, extra_page_size=None,
               kv_format=None, extra_kv_format=None, **options):
    which = ({"batch": block_table.shape[0], "max_pages": block_table.shape[1]} if indices is None else
             {"batch": indices.shape[0], "topk": indices.shape[2]})
    if extra_kv_cache is not None:
        which["extra_page_size"] = extra_kv_cache.shape[1] if extra_page_size is None else extra_page_size
        if extra_kv_format is None and extra_kv_cache.dim() == 4 and extra_kv_cache.shape[-1] == 288:
            extra_kv_format = "nvfp4_288"
        which["extra_kv_format"] = extra_kv_format
        if extra_indices is None:
            which["extra_max_pages"] = extra_block_table.shape[1]
        else:
            which["extra_topk"] = extra_indices.shape[2]
    return _plan_of_fakes(q, cu_seqlens_q, tokens, kv_heads=kv_cache.shape[2] if kv_cache.dim() == 4 else 1,
                          page_size=kv_cache.shape[1] if page_size is None else page_size,
                          kv_format=_format(kv_cache, kv_format), **which, **options)


def _decode(q, kv_cache, block_table=None, cache_seqlens=None, **options):
    return _step.decode(q, kv_cache, block_table, cache_seqlens, **options)


def _decode_fake(q, kv_cache, block_table=None, cache_seqlens=None, *, v_dim=512, cu_seqlens_q=None, tokens=None,
                 **options):
    out = q.new_empty((*q.shape[:-1], v_dim), dtype=torch.bfloat16 if q.element_size() == 1 else q.dtype)
    if cu_seqlens_q is None:
        batch, tokens, heads = q.shape[:3]
    else:
        batch, heads = cu_seqlens_q.shape[0] - 1, q.shape[1]
        tokens = torch.sym_max(q.shape[0], 1) if tokens is None else tokens
    return out, q.new_empty((batch, heads, tokens), dtype=torch.float32)


def _decode_out(q, kv_cache, block_table=None, cache_seqlens=None, *, out, lse, **options):
    _step.decode(q, kv_cache, block_table, cache_seqlens, out=out, lse=lse, **options)


def _plan_kv(q, key_cache, value_cache, block_table, cache_seqlens, **options):
    problem = Problem.of_kv_arrays(q, key_cache, value_cache, block_table, softmax_scale=1.0, **options)
    return _planned(problem, q, cache_seqlens)


def _kv_shape(key_cache, value_cache):
    """(page_size, h_kv, d_qk, d_v) of a cache, separate or packed."""
    if key_cache.dim() != 5:
        return (*key_cache.shape[1:], value_cache.shape[3])
    _, heads, units, page_size, x = key_cache.shape
    return page_size, heads, units * x, value_cache.shape[2]


def _plan_kv_fake(q, key_cache, value_cache, block_table, cache_seqlens, *, cu_seqlens_q=None, tokens=None, **options):
    page_size, kv_heads, _, v_dim = _kv_shape(key_cache, value_cache)
    return _plan_of_fakes(q, cu_seqlens_q, tokens, batch=block_table.shape[0], max_pages=block_table.shape[1],
                          kv_heads=kv_heads, page_size=page_size, v_dim=v_dim,
                          layout="packed" if key_cache.dim() == 5 else "separate",
                          kv_format="e4m3" if key_cache.element_size() == 1 else "plain", **options)


def _decode_kv(*tensors, **options):
    return _step.decode_kv(*tensors, **options)


def _decode_kv_fake(q, key_cache, value_cache, block_table, cache_seqlens, *, cu_seqlens_q=None, tokens=None,
                    **options):
    return _decode_fake(q, key_cache, v_dim=_kv_shape(key_cache, value_cache)[3], cu_seqlens_q=cu_seqlens_q,
                        tokens=tokens)


def _decode_kv_out(*tensors, **options):
    _step.decode_kv(*tensors, **options)


def _sparse_prefill(q, kv, indices, **options):
    return _native.sparse_prefill(q, kv, indices, **options)


def _sparse_prefill_fake(q, kv, indices, *, v_dim=512, **options):
    if q.dim() != 3:
        raise InvalidArgumentError(f"q has {q.dim()} dimensions; (s_q, h_q, d) is expected")
    return (q.new_empty((*q.shape[:2], v_dim)), q.new_empty(q.shape[:2], dtype=torch.float32),
            q.new_empty(q.shape[:2], dtype=torch.float32))


def _sparse_prefill_out(q, kv, indices, **options):
    _native.sparse_prefill(q, kv, indices, **options)


def _index_topk(*tensors, **options):
    return tuple(tensors[0].new_empty(0, dtype=dtype) if result is None else result
                 for result, dtype in zip(_native.index_topk(*tensors, **options),
                                          (torch.int32, torch.int32, torch.float32, torch.int32)))


def _index_topk_fake(q, weights, index_cache, block_table, cache_seqlens, *, topk, best_blocks=0, scores=False,
                     **options):
    tokens = q.shape[:-2]
    return (q.new_empty((*tokens, topk), dtype=torch.int32), q.new_empty(tokens, dtype=torch.int32),
            q.new_empty((*tokens, topk) if scores else 0, dtype=torch.float32),
            q.new_empty((*tokens, best_blocks) if best_blocks > 0 else 0, dtype=torch.int32))


def _index_topk_out(*tensors, **options):
    _native.index_topk(*tensors, **options)


def _merge_topk(scores, counts, indices, rank):
    return _native.merge_topk(scores, counts, indices, rank=rank)


def _merge_topk_fake(scores, counts, indices, rank):
    return torch.empty_like(indices), indices.new_empty(indices.shape[:2])


def _append_index_keys(keys, slot_mapping, index_cache, index_format="fp8_132", page_size=None):
    _native.append_index_keys(keys, slot_mapping, index_cache, index_format=index_format, page_size=page_size)


def _combine(partial_out, partial_lse, attn_sink=None, dtype=None):
    n, batch, tokens, heads, v_dim = partial_out.shape
    out = partial_out.new_empty((batch, tokens, heads, v_dim), dtype=torch.float32 if dtype is None else dtype)
    return _native.combine(partial_out, partial_lse, attn_sink=attn_sink, out=out)


def _combine_fake(partial_out, partial_lse, attn_sink=None, dtype=None):
    n, batch, tokens, heads, v_dim = partial_out.shape
    return (partial_out.new_empty((batch, tokens, heads, v_dim), dtype=torch.float32 if dtype is None else dtype),
            partial_out.new_empty((batch, heads, tokens), dtype=torch.float32))


def _append_latent(latent, rope, slot_mapping, kv_cache, kv_scale=None, kv_format=None, scales=None,
                   scale_floor="auto"):
    _native.append_latent(latent, rope, slot_mapping, kv_cache, kv_scale=kv_scale, kv_format=kv_format, scales=scales,
                          scale_floor=scale_floor)


def _finish_outputs_fake(out, positions=None, table=None, pairs="gptj", table_layout="halves", scale_columns=128,
                         groups=1):
    count, columns = out.shape[:-2].numel(), out.shape[-2] // groups * out.shape[-1]
    codes = out.new_empty((groups, count, columns), dtype=torch.float8_e4m3fn).transpose(0, 1)
    dtype = torch.float32 if scale_columns == 128 else torch.int32
    return codes, out.new_empty((groups, columns // 128, (count + 3) // 4 * 4), dtype=dtype)


def _finish_outputs(out, **options):
    codes, scales = _edges.finish_outputs(out, **{"scale_columns": 128, **options})
    return codes.view(torch.float8_e4m3fn), scales


# Of formats with bytes of their own: elements of a token, and its bytes. Of e4m3 both are the last extent.
_RECORDS = {"fp8_656": (576, 656), "fp8_584": (512, 584), "mxfp8_528": (512, 528), "nvfp4_288": (512, 288),
            "fp8_528": (512, 528)}


def _elements(kv_cache, kv_format):
    """Elements of a token."""
    last = kv_cache.shape[-1]
    return _RECORDS.get(_format(kv_cache, kv_format), (last, last))[0] if kv_cache.element_size() == 1 else last


def _new_format(elements, dtype, named):
    """What a new cache of `dtype` is of: for torch.uint8, which several are, fp8_656 or of 512 elements fp8_584."""
    if named is not None:
        return named
    if dtype != torch.uint8:
        return "e4m3" if dtype.itemsize == 1 else "plain"
    return "fp8_584" if elements == 512 else "fp8_656"


def _convert_cache_fake(kv_cache, dtype, kv_scale=None, new_kv_scale=None, kv_format=None, scales=None,
                        new_kv_format=None, new_scales=None, scale_floor="auto"):
    elements = _elements(kv_cache, kv_format)
    if kv_cache.dtype == dtype == torch.uint8 and new_kv_format is None:
        new_kv_format, new_scales = _format(kv_cache, kv_format), new_scales or scales
    named = _new_format(elements, dtype, new_kv_format)
    extent = _RECORDS.get(named, (elements, elements))[1]
    pages, page_size = kv_cache.shape[:2]
    if named == "fp8_584" or (named in _RECORDS and new_scales == "page"):  # whole pages, of which the array is a view
        unit = 576 if named == "fp8_584" else 1
        page_bytes = (page_size * extent + unit - 1) // unit * unit
        memory = kv_cache.new_empty((pages, page_bytes), dtype=dtype)
        return memory.as_strided((pages, page_size, 1, extent), (page_bytes, extent, extent, 1))
    return kv_cache.new_empty((*kv_cache.shape[:-1], extent), dtype=dtype)


def _convert_cache(kv_cache, dtype, kv_scale=None, new_kv_scale=None, kv_format=None, scales=None, new_kv_format=None,
                   new_scales=None, scale_floor="auto"):
    to = _convert_cache_fake(kv_cache, dtype, None, None, kv_format, scales, new_kv_format, new_scales)
    if dtype == torch.uint8:
        new_scales = new_scales or (scales if new_kv_format is None else None)
        new_kv_format = new_kv_format or (kv_format if kv_cache.dtype == dtype else None)
    return _native.convert_cache(kv_cache, to, kv_scale=kv_scale, new_kv_scale=new_kv_scale, kv_format=kv_format,
                                 scales=scales, format=new_kv_format, new_scales=new_scales, scale_floor=scale_floor)


def _gather_cache_fake(kv_cache, block_table, cu_seqlens, rows, first_token=None, dtype=None, kv_scale=None,
                       kv_format=None, scales=None):
    dtype = kv_cache.dtype if dtype is None else dtype
    extent = kv_cache.shape[-1] if dtype.itemsize == 1 else _elements(kv_cache, kv_format)
    return kv_cache.new_empty((rows, kv_cache.shape[2], extent), dtype=dtype)


def _gather_cache(kv_cache, block_table, cu_seqlens, rows, first_token=None, dtype=None, kv_scale=None, kv_format=None,
                  scales=None):
    out = _gather_cache_fake(kv_cache, block_table, cu_seqlens, rows, first_token, dtype, None, kv_format)
    return _native.gather_cache(kv_cache, block_table, cu_seqlens, first_token, out=out, kv_scale=kv_scale,
                                kv_format=kv_format, scales=scales)


def _append_kv(keys, values, slot_mapping, key_cache, value_cache, key_scale=None, value_scale=None):
    _native.append_kv(keys, values, slot_mapping, (key_cache, value_cache, key_scale, value_scale))


def _gather_kv_fake(key_cache, value_cache, block_table, cu_seqlens, rows, first_token=None, dtype=None,
                    key_scale=None, value_scale=None):
    _, heads, *dims = _kv_shape(key_cache, value_cache)
    dtype = key_cache.dtype if dtype is None else dtype
    return tuple(key_cache.new_empty((rows, heads, d), dtype=dtype) for d in dims)


def _gather_kv(key_cache, value_cache, block_table, cu_seqlens, rows, first_token=None, dtype=None, key_scale=None,
               value_scale=None):
    keys, values = _gather_kv_fake(key_cache, value_cache, block_table, cu_seqlens, rows, first_token, dtype)
    return _native.gather_kv((key_cache, value_cache, key_scale, value_scale), block_table, cu_seqlens, first_token,
                             keys=keys, values=values)


def _convert_kv_fake(key_cache, value_cache, layout=None, dtype=None, key_scale=None, value_scale=None,
                     new_key_scale=None, new_value_scale=None):
    pages = key_cache.shape[0]
    page_size, heads, qk_dim, v_dim = _kv_shape(key_cache, value_cache)
    dtype = key_cache.dtype if dtype is None else dtype
    if layout is None:
        layout = "packed" if key_cache.dim() == 5 else "separate"
    if layout == "packed":
        x = 16 // dtype.itemsize
        shapes = (pages, heads, qk_dim // x, page_size, x), (pages, heads, v_dim, page_size)
    elif layout == "separate":
        shapes = (pages, page_size, heads, qk_dim), (pages, page_size, heads, v_dim)
    else:
        raise InvalidArgumentError(f"layout is '{layout}'; separate and packed are accepted")
    return tuple(key_cache.new_empty(shape, dtype=dtype) for shape in shapes)


def _convert_kv(key_cache, value_cache, layout=None, dtype=None, key_scale=None, value_scale=None, new_key_scale=None,
                new_value_scale=None):
    keys, values = _convert_kv_fake(key_cache, value_cache, layout, dtype)
    _native.convert_kv((key_cache, value_cache, key_scale, value_scale),
                       (keys, values, new_key_scale, new_value_scale))
    return keys, values


def _copy_pages(source, to, pairs):
    _native.copy_pages(source, to, pairs)


def _nothing(*args, **kwargs):
    """What is made of fake tensors by an operator that only writes to its arguments."""


_define(f"plan(Tensor q, Tensor kv_cache, {_TOKENS}{_CALLS}) -> Tensor", _plan, _plan_fake)
_define(f"decode(Tensor q, Tensor kv_cache, {_DECODE}) -> (Tensor, Tensor)", _decode, _decode_fake)
_define(f"decode_out(Tensor q, Tensor kv_cache, {_DECODE}, Tensor(a!) out, Tensor(b!) lse) -> ()", _decode_out,
        _nothing)
_define(f"plan_kv({_KV}, {_CALLS}) -> Tensor", _plan_kv, _plan_kv_fake)
_define(f"decode_kv({_DECODE_KV}) -> (Tensor, Tensor)", _decode_kv, _decode_kv_fake)
_define(f"decode_kv_out({_DECODE_KV}, Tensor(a!) out, Tensor(b!) lse) -> ()", _decode_kv_out, _nothing)
_define(f"sparse_prefill({_SPARSE_PREFILL}) -> (Tensor, Tensor, Tensor)", _sparse_prefill, _sparse_prefill_fake)
_define(f"sparse_prefill_out({_SPARSE_PREFILL}, Tensor(a!) out, Tensor(b!) max_logits, Tensor(c!) lse) -> ()",
        _sparse_prefill_out, _nothing)
_define(f"index_topk({_INDEX_TOPK}, bool scores=False) -> (Tensor, Tensor, Tensor, Tensor)", _index_topk,
        _index_topk_fake)
_define(f"index_topk_out({_INDEX_TOPK}, Tensor(a!) out, Tensor(b!) counts) -> ()", _index_topk_out, _nothing)
_define("merge_topk(Tensor scores, Tensor counts, Tensor indices, int rank) -> (Tensor, Tensor)", _merge_topk,
        _merge_topk_fake)
_define("append_index_keys(Tensor keys, Tensor slot_mapping, Tensor(a!) index_cache, str index_format='fp8_132', "
        "int? page_size=None) -> ()", _append_index_keys, _nothing)
_define("combine(Tensor partial_out, Tensor partial_lse, Tensor? attn_sink=None, ScalarType? dtype=None)"
        " -> (Tensor, Tensor)", _combine, _combine_fake)
_define("append_latent(Tensor latent, Tensor? rope, Tensor slot_mapping, Tensor(a!) kv_cache, Tensor? kv_scale=None, "
        "str? kv_format=None, str? scales=None, str scale_floor='auto') -> ()", _append_latent, _nothing)
_define("convert_cache(Tensor kv_cache, ScalarType dtype, Tensor? kv_scale=None, Tensor? new_kv_scale=None, "
        "str? kv_format=None, str? scales=None, str? new_kv_format=None, str? new_scales=None, "
        "str scale_floor='auto') -> Tensor", _convert_cache, _convert_cache_fake)
_define("gather_cache(Tensor kv_cache, Tensor block_table, Tensor cu_seqlens, SymInt rows, Tensor? first_token=None, "
        "ScalarType? dtype=None, Tensor? kv_scale=None, str? kv_format=None, str? scales=None) -> Tensor",
        _gather_cache, _gather_cache_fake)
_define("append_kv(Tensor keys, Tensor values, Tensor slot_mapping, Tensor(a!) key_cache, Tensor(b!) value_cache, "
        "Tensor? key_scale=None, Tensor? value_scale=None) -> ()", _append_kv, _nothing)
_define("gather_kv(Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor cu_seqlens, SymInt rows, "
        "Tensor? first_token=None, ScalarType? dtype=None, Tensor? key_scale=None, Tensor? value_scale=None)"
        " -> (Tensor, Tensor)", _gather_kv, _gather_kv_fake)
_define("convert_kv(Tensor key_cache, Tensor value_cache, str? layout=None, ScalarType? dtype=None, "
        "Tensor? key_scale=None, Tensor? value_scale=None, Tensor? new_key_scale=None, Tensor? new_value_scale=None)"
        " -> (Tensor, Tensor)", _convert_kv, _convert_kv_fake)
_define("copy_pages(Tensor source, Tensor(a!) to, Tensor pairs) -> ()", _copy_pages, _nothing)
_ROTATE = "Tensor? positions=None, Tensor? table=None, str pairs='gptj', str table_layout='halves'"
_define(f"prepare_queries(Tensor q, *, float norm=0., {_ROTATE}) -> Tensor", _native.prepare_queries,
        lambda q, **options: torch.empty_like(q, memory_format=torch.contiguous_format))
_define(f"finish_outputs(Tensor out, *, {_ROTATE}, int scale_columns=128, int groups=1) -> (Tensor, Tensor)",
        _finish_outputs, _finish_outputs_fake)


def plan(q: Tensor, kv_cache: Tensor, block_table: Optional[Tensor] = None, cache_seqlens: Optional[Tensor] = None,
         **options) -> Tensor:
    """The plan of a step, for decode() of tensors of these shapes: an opaque uint8 tensor.

    Options are those of decode(), but for softmax_scale, attn_sink, kv_scale and q_scale, on which no plan depends, and
    calls_per_plan=0: how many calls of decode() get this plan, 1 for a draft model of one layer; 0: many. It stays right,
    if not balanced, when lengths change; the one exception is batch_invariant, which needs a new plan. It does not
    serve other shapes, options or devices: the CPU refuses it for those, a GPU does not check.
    """
    return _call(torch.ops.flashlatent.plan, q, kv_cache, block_table, cache_seqlens, **options)


def decode(q: Tensor, kv_cache: Tensor, block_table: Optional[Tensor] = None,
           cache_seqlens: Optional[Tensor] = None, *, softmax_scale: float, **options) -> Tuple[Tensor, Tensor]:
    """One layer; returns (out, lse), new tensors. Shapes and meaning as in flashlatent.decode().

    options  v_dim=512, causal=False, indices, topk_length, cu_seqlens_q, tokens, attn_sink, batch_invariant=False,
             window=0, the extra cache (extra_kv_cache, extra_indices, extra_topk_length, extra_block_table,
             extra_cache_seqlens), page_size, extra_page_size, kv_format, scales, extra_kv_format, kv_scale, q_scale, products="auto", shard,
             typical_tokens=0, plan, what plan() returned with the same options (without it the call plans for itself),
             and check_inputs=False: True raises for lengths and page numbers out of range, on a GPU after waiting for
             the stream
    """
    return _call(torch.ops.flashlatent.decode, q, kv_cache, block_table, cache_seqlens, softmax_scale=softmax_scale,
                 **options)


def decode_out(q: Tensor, kv_cache: Tensor, block_table: Optional[Tensor] = None,
               cache_seqlens: Optional[Tensor] = None, *, softmax_scale: float, out: Tensor, lse: Tensor,
               **options) -> None:
    """decode() into tensors of the caller's: out like q with v_dim in the end, lse fp32 (batch, h_q, s_q)."""
    _call(torch.ops.flashlatent.decode_out, q, kv_cache, block_table, cache_seqlens, softmax_scale=softmax_scale,
          out=out, lse=lse, **options)


def plan_kv(q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor,
            **options) -> Tensor:
    """As plan(), for decode_kv(); options are causal=False, window=0, cu_seqlens_q, tokens,
    batch_invariant=False, shard, typical_tokens=0, calls_per_plan=0."""
    return _call(torch.ops.flashlatent.plan_kv, q, key_cache, value_cache, block_table, cache_seqlens, **options)


def decode_kv(q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, *,
              softmax_scale: float, **options) -> Tuple[Tensor, Tensor]:
    """One layer of keys and values; returns (out, lse), new tensors. Shapes and meaning as in flashlatent.decode_kv().

    options  causal=False, window=0, soft_cap=0.0, alibi_slopes, key_scale, value_scale, cu_seqlens_q, tokens,
             attn_sink, batch_invariant=False, shard, typical_tokens=0, plan, what plan_kv() returned with the same
             options (without it the call plans for itself), and check_inputs=False, as in decode()
    """
    return _call(torch.ops.flashlatent.decode_kv, q, key_cache, value_cache, block_table, cache_seqlens,
                 softmax_scale=softmax_scale, **options)


def decode_kv_out(q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, *,
                  softmax_scale: float, out: Tensor, lse: Tensor, **options) -> None:
    """decode_kv() into tensors of the caller's: out like q with d_v in the end, lse fp32 (batch, h_q, s_q)."""
    _call(torch.ops.flashlatent.decode_kv_out, q, key_cache, value_cache, block_table, cache_seqlens,
          softmax_scale=softmax_scale, out=out, lse=lse, **options)


def sparse_prefill(q: Tensor, kv: Tensor, indices: Tensor, *, softmax_scale: float,
                   **options) -> Tuple[Tensor, Tensor, Tensor]:
    """Sparse prefill; returns (out, max_logits, lse), new tensors. Shapes and meaning as in
    flashlatent.sparse_prefill().

    options  v_dim=512, topk_length, attn_sink, the extra cache (extra_kv_cache, extra_indices, extra_topk_length),
             page_size, extra_page_size, kv_format, scales, extra_kv_format, kv_scale, and check_inputs=False, as in
             decode()
    """
    return _call(torch.ops.flashlatent.sparse_prefill, q, kv, indices, softmax_scale=softmax_scale, **options)


def sparse_prefill_out(q: Tensor, kv: Tensor, indices: Tensor, *, softmax_scale: float, out: Tensor,
                       max_logits: Tensor, lse: Tensor, **options) -> None:
    """sparse_prefill() into tensors of the caller's: out (s_q, h_q, v_dim), max_logits and lse fp32 (s_q, h_q)."""
    _call(torch.ops.flashlatent.sparse_prefill_out, q, kv, indices, softmax_scale=softmax_scale, out=out,
          max_logits=max_logits, lse=lse, **options)


def index_topk(q: Tensor, weights: Tensor, index_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, *,
               topk: int, **options) -> Tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
    """The indexer; returns (indices, counts, scores, best_blocks), of which the last two are None unless scores=True and
    best_blocks=n ask for them. Shapes and meaning as in flashlatent.index_topk().

    options  index_format='fp8_132', page_size, causal=False, q_scale, cu_seqlens_q, candidates, candidate_block=8,
             best_blocks=0, slot_table, slot_page_size=0, scores=False
    """
    indices, counts, scores, best = _call(torch.ops.flashlatent.index_topk, q, weights, index_cache, block_table,
                                          cache_seqlens, topk=topk, **options)
    return (indices, counts, scores if options.get("scores") else None,
            best if options.get("best_blocks") else None)


def index_topk_out(q: Tensor, weights: Tensor, index_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, *,
                   topk: int, out: Tensor, counts: Tensor, **options) -> None:
    """index_topk() into tensors of the caller's: out int32 (batch, s_q, topk), counts int32 (batch, s_q)."""
    _call(torch.ops.flashlatent.index_topk_out, q, weights, index_cache, block_table, cache_seqlens, topk=topk,
          out=out, counts=counts, **options)


def merge_topk(scores: Tensor, counts: Tensor, indices: Tensor, rank: int) -> Tuple[Tensor, Tensor]:
    """The best of what ranks that share a context have chosen; see flashlatent.merge_topk()."""
    return _call(torch.ops.flashlatent.merge_topk, scores, counts, indices, rank)


def append_index_keys(keys: Tensor, slot_mapping: Tensor, index_cache: Tensor, index_format: str = "fp8_132",
                      page_size: Optional[int] = None) -> None:
    """Writes new index keys into a cache; see flashlatent.append_index_keys()."""
    _call(torch.ops.flashlatent.append_index_keys, keys, slot_mapping, index_cache, index_format, page_size)


def combine(partial_out: Tensor, partial_lse: Tensor, attn_sink: Optional[Tensor] = None,
            dtype: Optional[torch.dtype] = None) -> Tuple[Tensor, Tensor]:
    """Merges partial results, (n, batch, s_q, h_q, d_v) and fp32 (n, batch, h_q, s_q), by their lse; returns (out,
    lse), out in `dtype` (fp32 if not given). As flashlatent.combine()."""
    return _call(torch.ops.flashlatent.combine, partial_out, partial_lse, attn_sink, dtype)


def append_latent(latent: Tensor, rope: Optional[Tensor], slot_mapping: Tensor, kv_cache: Tensor,
                  kv_scale: Optional[Tensor] = None, kv_format: Optional[str] = None, scales: Optional[str] = None,
                  scale_floor: str = "auto") -> None:
    """Writes new tokens into a cache; see flashlatent.append_latent()."""
    _call(torch.ops.flashlatent.append_latent, latent, rope, slot_mapping, kv_cache, kv_scale, kv_format, scales,
          scale_floor)


def convert_cache(kv_cache: Tensor, dtype: torch.dtype, kv_scale: Optional[Tensor] = None,
                  new_kv_scale: Optional[Tensor] = None, kv_format: Optional[str] = None,
                  scales: Optional[str] = None, new_kv_format: Optional[str] = None,
                  new_scales: Optional[str] = None, scale_floor: str = "auto") -> Tensor:
    """The cache in another format: torch.float8_e4m3fn is e4m3, with the new scale; torch.uint8 is new_kv_format, with
    scales where new_scales says, by default fp8_656 (of 512 elements fp8_584), or the format of a cache of bytes; see
    flashlatent.convert_cache()."""
    return _call(torch.ops.flashlatent.convert_cache, kv_cache, dtype, kv_scale, new_kv_scale, kv_format, scales,
                 new_kv_format, new_scales, scale_floor)


def gather_cache(kv_cache: Tensor, block_table: Tensor, cu_seqlens: Tensor, rows: int,
                 first_token: Optional[Tensor] = None, dtype: Optional[torch.dtype] = None,
                 kv_scale: Optional[Tensor] = None, kv_format: Optional[str] = None,
                 scales: Optional[str] = None) -> Tensor:
    """Requests' tokens side by side, (rows, h_kv, d), in the cache's dtype or another; see
    flashlatent.gather_cache()."""
    return _call(torch.ops.flashlatent.gather_cache, kv_cache, block_table, cu_seqlens, rows, first_token, dtype,
                 kv_scale, kv_format, scales)


def prepare_queries(q: Tensor, *, norm: float = 0.0, positions: Optional[Tensor] = None, table: Optional[Tensor] = None,
                    pairs: str = "gptj", table_layout: str = "halves") -> Tensor:
    """Queries normalised and rotated, contiguous; see flashlatent.prepare_queries()."""
    return _call(torch.ops.flashlatent.prepare_queries, q, norm=norm, positions=positions, table=table, pairs=pairs,
                 table_layout=table_layout)


def finish_outputs(out: Tensor, *, positions: Optional[Tensor] = None, table: Optional[Tensor] = None,
                   pairs: str = "gptj", table_layout: str = "halves", scale_columns: int = 128,
                   groups: int = 1) -> Tuple[Tensor, Tensor]:
    """(codes, scales) of outputs rotated back, codes as float8_e4m3fn; see flashlatent.finish_outputs()."""
    return _call(torch.ops.flashlatent.finish_outputs, out, positions=positions, table=table, pairs=pairs,
                 table_layout=table_layout, scale_columns=scale_columns, groups=groups)


def append_kv(keys: Tensor, values: Tensor, slot_mapping: Tensor, key_cache: Tensor, value_cache: Tensor,
              key_scale: Optional[Tensor] = None, value_scale: Optional[Tensor] = None) -> None:
    """Writes new tokens into a cache of keys and values; see flashlatent.append_kv()."""
    _call(torch.ops.flashlatent.append_kv, keys, values, slot_mapping, key_cache, value_cache, key_scale, value_scale)


def gather_kv(key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cu_seqlens: Tensor, rows: int,
              first_token: Optional[Tensor] = None, dtype: Optional[torch.dtype] = None,
              key_scale: Optional[Tensor] = None, value_scale: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
    """Requests' keys and values side by side, (rows, h_kv, d_qk) and (rows, h_kv, d_v), in the cache's dtype or
    another (an e4m3 cache's must be said); see flashlatent.gather_kv()."""
    return _call(torch.ops.flashlatent.gather_kv, key_cache, value_cache, block_table, cu_seqlens, rows, first_token,
                 dtype, key_scale, value_scale)


def convert_kv(key_cache: Tensor, value_cache: Tensor, layout: Optional[str] = None,
               dtype: Optional[torch.dtype] = None, key_scale: Optional[Tensor] = None,
               value_scale: Optional[Tensor] = None, new_key_scale: Optional[Tensor] = None,
               new_value_scale: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
    """New (keys, values) in another layout ('separate', 'packed') or dtype (torch.uint8 or float8_e4m3fn is e4m3, with
    the new scales); see flashlatent.convert_kv()."""
    return _call(torch.ops.flashlatent.convert_kv, key_cache, value_cache, layout, dtype, key_scale, value_scale,
                 new_key_scale, new_value_scale)


def copy_pages(source: Tensor, to: Tensor, pairs: Tensor) -> None:
    """Copies pages between two caches; see flashlatent.copy_pages(). Within one cache call that instead: operators
    of torch may not be given a tensor twice that they write to."""
    _call(torch.ops.flashlatent.copy_pages, source, to, pairs)


def _sign(function):
    """Gives a function whose options go to an operator by name that operator's, with their defaults."""
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    if len(own) == len(signature.parameters):
        return
    names = [parameter.name for parameter in own]
    for argument in getattr(torch.ops.flashlatent, function.__name__).default._schema.arguments:
        if argument.name not in names:
            default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
            kind = _ANNOTATIONS.get(str(argument.type), inspect.Parameter.empty)
            own.append(inspect.Parameter(argument.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    function.__signature__ = signature.replace(parameters=own)


_ANNOTATIONS = {"Optional[Tensor]": Optional[Tensor], "Tensor": Tensor, "bool": bool, "int": int, "float": float,
                "Optional[int]": Optional[int], "str": str, "Optional[List[int]]": Optional[Tuple[int, int, int]]}

for _name in __all__:
    _sign(globals()[_name])
