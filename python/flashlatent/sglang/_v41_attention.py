"""DeepSeek V4.1's attention in SGLang 0.5.23 from records of 528 and 288 bytes: writing and reading them.

SGLang's own kernels write the window and the tokens of compressors of ratios 4 and 128. This module writes what passes
through fused_store_cache(), whose kernel needs Blackwell's conversion to e2m1. Prompts and decode read both caches in
place, by the slots that SGLang gives to its decode.
"""

from functools import partial
from typing import Any, NamedTuple, Optional, Tuple

import torch

import flashlatent

from .._sparse import Chosen, decode, prefill


class _Format(NamedTuple):
    kv_format: str
    scales: str
    token_bytes: int


_FORMATS = {  # by SGLang's layouts
    "v41": _Format("mxfp8_528", "page", 528),
    "v41_fp4": _Format("nvfp4_288", "page", 288),
    "v41_new": _Format("mxfp8_528", "token", 528),
    "v41_fp4_new": _Format("nvfp4_288", "token", 288),
}
_NAMES = {format.token_bytes: format.kv_format for format in _FORMATS.values()}


def take_over(pool: Any, backend: Any) -> None:
    """pool, backend: SGLang's modules; once in a process, which pool.flashlatent says."""
    pool.flashlatent = True
    pool.fused_store_cache = partial(_store, pool.fused_store_cache, pool.KVLayout)
    backend._create_flashmla_metadata = flashlatent.Step  # a step's plan, made anew wherever SGLang makes FlashMLA's
    theirs = backend.DeepseekV4AttnBackend
    theirs._use_sparse_prefill = _no_workspace
    forward = theirs._forward_attention

    def forward_here(self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *rest: Any, **options: Any) -> Any:
        way = prefill if forward_batch.forward_mode.is_extend_without_speculative() else decode
        scales = "token" if self.token_to_kv_pool.get_swa_key_layout().is_interleaved else "page"
        self._flash_mla_with_kvcache = partial(attend, way, layer.tp_q_head_num, scales)
        return forward(self, q, k, v, layer, forward_batch, *rest, **options)

    theirs._forward_attention = forward_here


def _no_workspace(self: Any, forward_batch: Any, *, num_qo_tokens: int) -> bool:
    """In place of _use_sparse_prefill(): prompts, too, take the slots of the caches."""
    return False


def attend(way: Any, heads: int, scales: str, *, q: torch.Tensor, k_cache: torch.Tensor, softmax_scale: float,
           tile_scheduler_metadata: flashlatent.Step, indices: torch.Tensor, topk_length: torch.Tensor,
           attn_sink: torch.Tensor, extra_k_cache: Optional[torch.Tensor] = None,
           extra_indices_in_kvcache: Optional[torch.Tensor] = None, extra_topk_length: Optional[torch.Tensor] = None,
           **_: Any) -> Tuple[torch.Tensor, None]:
    """flash_mla_with_kvcache() as SGLang calls it, q (rows, 1, heads, 512). Heads from `heads` on are padding, which
    SGLang cuts off: they hold anything."""
    chosen = Chosen(indices.squeeze(1), topk_length)
    options = dict(kv_format="mxfp8_528", scales=scales)
    if extra_k_cache is not None and extra_indices_in_kvcache is not None:
        chosen = Chosen(indices.squeeze(1), topk_length, extra_indices_in_kvcache.squeeze(1), extra_topk_length)
        options.update(extra_kv_cache=_bytes(extra_k_cache), extra_kv_format=_NAMES[extra_k_cache.shape[-1]])
    out = torch.empty_like(q)
    way(tile_scheduler_metadata, q[:, 0, :heads], _bytes(k_cache), chosen, out[:, 0, :heads],
        softmax_scale=softmax_scale, attn_sink=attn_sink[:heads], **options)
    return out, None


def _store(theirs: Any, layouts: Any, input: torch.Tensor, cache: torch.Tensor, indices: torch.Tensor, *,
           page_size: int, type: str, layout: Any = "v4", freqs_cis: Optional[torch.Tensor] = None) -> None:
    """In place of fused_store_cache()."""
    format = _FORMATS.get(layouts.parse(layout).value)
    if format is None or type != "flashmla":
        theirs(input, cache, indices, page_size=page_size, type=type, layout=layout, freqs_cis=freqs_cis)
        return
    whole = cache[:, :page_size * format.token_bytes].view(len(cache), page_size, 1, format.token_bytes)
    floor = "scale" if format.kv_format == "mxfp8_528" else "auto"  # for scales that are powers of two
    flashlatent.append_latent(_rotated(input, freqs_cis), None, indices, whole, kv_format=format.kv_format,
                              scales=format.scales, scale_floor=floor)


def _rotated(latent: torch.Tensor, freqs_cis: Optional[torch.Tensor]) -> torch.Tensor:
    """freqs_cis: complex (n, 32), or its pairs (n, 64), of each row. Rotated columns are rounded to the latent's dtype
    before they are quantised, as SGLang does; append_latent() would not round them for these formats."""
    if freqs_cis is None:
        return latent
    pairs = torch.view_as_real(freqs_cis).flatten(-2) if freqs_cis.is_complex() else freqs_cis
    rows = torch.arange(len(latent), dtype=torch.int32, device=latent.device)
    return flashlatent.prepare_queries(latent.unsqueeze(1), positions=rows, table=pairs,
                                       table_layout="interleaved").squeeze(1)


def _bytes(cache: torch.Tensor) -> torch.Tensor:
    """SGLang's pools declare their bytes as e4m3."""
    return cache.view(torch.uint8)
