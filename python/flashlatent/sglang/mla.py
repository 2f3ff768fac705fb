"""MLA decode in SGLang 0.5.17 and 0.5.23: bf16 and fp16 caches, any page size, CUDA graphs, drafts in a chain.

Another backend runs prompts (--prefill-attention-backend); SGLang combines both in one.
"""

import os
import sys
from typing import Any, Optional

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from flashlatent import Step

from .._typical import of_setting, rounded
from . import NAME
from ._settings import Settings, settings_of

_SETTING = "FLASHLATENT_TYPICAL_TOKENS"  # an environment variable


class FlashLatentMLABackend(AttentionBackend):
    needs_cpu_seq_lens = False

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        settings = settings_of(model_runner)
        _refuse(model_runner, settings)
        self.page_size = int(model_runner.page_size)
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.draft_tokens = settings.draft_tokens
        self.batch_invariant = settings.deterministic
        self.tokens_in_graphs = _tokens_in_graphs()
        self.step = Step()
        self.block_table: Optional[torch.Tensor] = None
        self.cache_seqlens: Optional[torch.Tensor] = None
        self.typical_tokens = self.tokens_in_graphs
        _ask_for_parts(model_runner)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Does nothing: a graph computes all that it reads."""

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Computes page tables and lengths by operations of fixed shape, so that a graph repeats them at each replay;
        the first layer then makes the plan."""
        requests = forward_batch.batch_size
        first_slots = self.req_to_token[:, ::self.page_size]  # of each page, by request
        chosen = first_slots.index_select(0, forward_batch.req_pool_indices[:requests].long())
        self.block_table = torch.div(chosen, self.page_size, rounding_mode="floor").int()
        lengths = forward_batch.seq_lens[:requests].int()
        if forward_batch.forward_mode.is_target_verify():
            lengths = lengths + self.draft_tokens
        self.cache_seqlens = lengths
        self.typical_tokens = self._typical_tokens(forward_batch)
        self.step = Step()

    def _typical_tokens(self, forward_batch: Any) -> int:
        """The tokens of the batch's longest request, where the host knows it. In a graph, which is captured before
        lengths are known, and where the host does not know: what the user set."""
        known = getattr(forward_batch, "seq_lens_cpu", None)
        capturing = forward_batch.seq_lens.is_cuda and torch.cuda.is_current_stream_capturing()
        if known is None or capturing or known.numel() == 0:
            return self.tokens_in_graphs
        return rounded(int(known.max()) + self.draft_tokens)

    def forward_decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Any, forward_batch: Any,
                       save_kv_cache: bool = True, **kwargs: Any) -> torch.Tensor:
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache, 1, **kwargs)

    def forward_extend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Any, forward_batch: Any,
                       save_kv_cache: bool = True, **kwargs: Any) -> torch.Tensor:
        if not forward_batch.forward_mode.is_target_verify():
            raise NotImplementedError(
                f"flashlatent: forward_mode is {forward_batch.forward_mode}; decode and target verification are "
                "expected, and prompts go to --prefill-attention-backend (fa3, flashinfer or triton)")
        if getattr(getattr(forward_batch, "spec_info", None), "ragged_verify_layout", None) is not None:
            raise NotImplementedError(
                "flashlatent: requests of a batch verify different numbers of drafts (SGLANG_RAGGED_VERIFY_MODE); as "
                "many for each are expected, or --speculative-attention-mode prefill")
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache, self.draft_tokens, **kwargs)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Any, forward_batch: Any,
                save_kv_cache: bool, tokens: int, q_rope: Optional[torch.Tensor] = None,
                k_rope: Optional[torch.Tensor] = None, attn_sink: Optional[torch.Tensor] = None,
                **_: Any) -> torch.Tensor:
        """q_rope, k_rope: the RoPE parts of queries and keys, if SGLang passes them separately. attn_sink: one logit a
        head, which SGLang passes for models that have it."""
        if save_kv_cache and k is not None:
            if k_rope is None:
                self.token_to_kv_pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
            else:
                self.token_to_kv_pool.set_mla_kv_buffer(layer, forward_batch.out_cache_loc, k, k_rope)
        slots = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        pages = slots.shape[0] // self.page_size
        cache = slots[:pages * self.page_size].view(pages, self.page_size, 1, layer.head_dim)
        requests, heads = forward_batch.batch_size, layer.tp_q_head_num

        def rows(part: torch.Tensor) -> torch.Tensor:  # (rows, heads, columns), or heads and columns as one dimension
            part = part if part.dim() == 3 else part.unflatten(-1, (heads, -1))
            return part.unflatten(0, (requests, tokens))

        out, _ = self.step.decode(
            rows(q), cache, self.block_table, self.cache_seqlens, q_rope=None if q_rope is None else rows(q_rope),
            softmax_scale=layer.scaling, v_dim=layer.v_head_dim, causal=True,
            attn_sink=None if attn_sink is None else attn_sink.float(), batch_invariant=self.batch_invariant,
            typical_tokens=self.typical_tokens)
        return out.view(requests * tokens, layer.tp_q_head_num * layer.v_head_dim)


def _ask_for_parts(model_runner: Any) -> None:
    """Makes SGLang pass queries and keys in two parts, without a concatenation, as it does for backends in a list of
    the model's module. Not for models with a llama_4_scaling, which SGLang applies to the concatenation."""
    if _of_model(model_runner, "llama_4_scaling") is not None:
        return
    for name in ("sglang.srt.models.deepseek_common.utils", "sglang.srt.models.deepseek_v2"):
        backends = getattr(sys.modules.get(name), "FORWARD_ABSORB_CORE_ATTENTION_BACKENDS", None)
        if isinstance(backends, list):
            if NAME not in backends:
                backends.append(NAME)
            return


def _tokens_in_graphs() -> int:
    value = os.environ.get(_SETTING)
    return of_setting(_SETTING, int(value) if value is not None and value.isdecimal() else value)


def _of_model(model_runner: Any, name: str) -> Any:
    """A field of the model's configuration; a model of text and images has one of its own for text."""
    model = getattr(model_runner, "model_config", None)
    for configuration in (getattr(model, "hf_text_config", None), getattr(model, "hf_config", None)):
        if (value := getattr(configuration, name, None)) is not None:
            return value
    return None


def _refuse(model_runner: Any, settings: Settings) -> None:
    """ValueError with the option, its value and what would do."""
    if not model_runner.use_mla_backend:
        raise ValueError("flashlatent: the model has keys and values apart; --decode-attention-backend flashlatent "
                         "takes models with latent caches (MLA)")
    chosen = _of_model(model_runner, "index_topk")
    if chosen is not None:
        raise ValueError(f"flashlatent: the model attends to tokens that an indexer chooses (index_topk is {chosen}); "
                         "leave --decode-attention-backend out, for SGLang has backends of its own for it")
    if settings.prefill_backend in (None, NAME):
        raise ValueError(f"flashlatent: --prefill-attention-backend is {settings.prefill_backend}; fa3, flashinfer or "
                         "triton is expected, and flashlatent as --decode-attention-backend")
    dtype = model_runner.kv_cache_dtype
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"flashlatent: --kv-cache-dtype is {dtype}; auto, bfloat16 or float16 is expected")
    if settings.dcp_size > 1:
        raise ValueError(f"flashlatent: --dcp-size is {settings.dcp_size}; 1 is expected")
    if settings.eagle_topk > 1:
        raise ValueError(f"flashlatent: --speculative-eagle-topk is {settings.eagle_topk}; 1 is expected, for drafts "
                         "are verified as a chain")
    if getattr(getattr(model_runner, "kv_index_translator", None), "reads_are_translated", False):
        raise ValueError("flashlatent: --enable-unified-memory is set; leave it out, for its page tables are of other "
                         "numbers")
