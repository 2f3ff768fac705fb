"""generate_batch(): transformers' continuous batching over a latent cache. Its scheduler and its block manager, with
prefix sharing, are transformers' own; blocks are pages here."""

import copy
import threading
import types

import torch
from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.utils import is_psutil_available

from .._errors import InvalidArgumentError, UnavailableError, UnsupportedError
from ._step import Step

# The name of an attention implementation for which transformers makes no masks. It is never called.
IMPLEMENTATION = "paged|latent_mla"
MAX_BATCH_TOKENS = 8192  # transformers' default where it is free to choose
_substitution = threading.Lock()


class LatentPagedCache(PagedAttentionCache):
    """transformers' paged cache, which holds latents instead of keys and values."""

    def __init__(self, config, continuous_batching_config, device, distributed_helper, tp_plan, dtype, enabled):
        self.enabled = enabled
        # transformers makes as many blocks as fit, so sizes are given in its terms: a key and a value of one head,
        # together as large as a token of the layout; no attention masks ("flash").
        config = copy.copy(config)
        config.num_key_value_heads = 1
        config.head_dim = enabled.layout.token_bytes // (2 * dtype.itemsize)
        config._attn_implementation_internal = "paged|flash"
        super().__init__(config, continuous_batching_config, torch.device("meta"), distributed_helper, tp_plan, dtype)
        self.device = device
        layout = enabled.layout._replace(page_size=self.block_size, device=device)
        self.layout = layout
        self.latents = layout.arrays(self.num_blocks + 2)
        self.key_cache, self.value_cache = self.latents, []

    def update(self, *args, **options):
        raise InvalidArgumentError("attn_implementation was changed while generate_batch() ran; leave it as it is")

    def copy_cache(self, list_source_blocks, list_forked_blocks):
        source = torch.tensor(list_source_blocks, device=self.device)
        forked = torch.tensor(list_forked_blocks, device=self.device)
        for cache in self.latents:
            cache[forked] = cache[source]


def paged_step(cache, options):
    """The Step of one pass of continuous batching, from the arguments that transformers gives to the model."""
    begins_q, begins_k = options["cu_seq_lens_q"], options["cu_seq_lens_k"]
    new, total = ([b - a for a, b in zip(begins[:-1], begins[1:])]
                  for begins in torch.stack([begins_q, begins_k]).tolist())
    past = [all_ - new_ for all_, new_ in zip(total, new)]
    slots, read = options["write_index"][0], options["read_index"][0]
    table = None
    if any(past):
        # `read` has tokens' places one after another: the place of each page's first token gives the page.
        size = cache.layout.page_size
        firsts = torch.arange(0, max(total), size, device=read.device)
        places = begins_k[:-1, None] + firsts
        inside = firsts < (begins_k[1:] - begins_k[:-1])[:, None]
        pages = read[places.clamp(max=read.numel() - 1)] // size
        table = torch.where(inside, pages, -1).to(torch.int32)
    return Step(cache.layout, cache.enabled.dims, cache.latents, new, past, slots, table)


def init_continuous_batching(model, generation_config=None, continuous_batching_config=None, workload_hints=None):
    """In place of transformers' method: its manager, over a LatentPagedCache."""
    config = continuous_batching_config
    if config is None:
        config = continuous_api.ContinuousBatchingConfig()
    config = _checked(config)
    _set_sizes(config, model.device, workload_hints)
    before = model.config._attn_implementation
    if not before.startswith("paged|"):
        model.config._attn_implementation_internal = IMPLEMENTATION
    try:
        manager = type(model).init_continuous_batching(model, generation_config, config, workload_hints)
    except BaseException:
        model.config._attn_implementation_internal = before
        raise
    if not before.startswith("paged|"):
        manager._original_attn_impl = before  # stop() sets it again
    manager._create_batch_processor = types.MethodType(_create_batch_processor, manager)
    return manager


def _checked(config):
    """The configuration, with CUDA graphs and compilation off; refuses those that ask for them."""
    for name, asked in (("use_cuda_graph", config.use_cuda_graph not in (None, False, (False, False))),
                        ("q_padding_interval_size", config.q_padding_interval_size),
                        ("kv_padding_interval_size", config.kv_padding_interval_size),
                        ("varlen_compile_config", config.varlen_compile_config is not None),
                        ("decode_compile_config", config.decode_compile_config is not None),
                        ("default_compile_level", config.default_compile_level),
                        ("cpu_offload_space", config.cpu_offload_space)):
        if asked:
            raise UnsupportedError(f"continuous_batching_config.{name} is {getattr(config, name)!r}; generate_batch() "
                                   "over a latent cache runs without CUDA graphs, compilation and offloading: leave "
                                   "it out")
    config = copy.copy(config)
    config.use_cuda_graph = False
    return config


def _set_sizes(config, device, hints):
    """Sizes where transformers' own rule, all memory that is free, does not fit."""
    if device.type == "cpu":
        if not is_psutil_available():
            raise UnavailableError("psutil is not installed; generate_batch() on the CPU needs it, to know how much "
                                   "memory there is: pip install psutil")
        if config.num_blocks is None and hints is not None:
            tokens = hints.max_prompt_length + hints.max_generated_length + 1
            config.num_blocks = max(1, hints.num_requests) * (-(-tokens // config.block_size) + 1)
    if config.num_blocks is not None and config.max_batch_tokens is None:
        config.max_batch_tokens = MAX_BATCH_TOKENS


def _create_batch_processor(manager):
    """In place of the manager's method: while it runs, the cache that it makes is a LatentPagedCache."""
    enabled = manager.model._flashlatent

    def make(*, config, **options):
        if config is not manager.model.config.get_text_config():
            return PagedAttentionCache(config=config, **options)
        return LatentPagedCache(config=config, enabled=enabled, **options)

    with _substitution:
        continuous_api.PagedAttentionCache = make
        try:
            return type(manager)._create_batch_processor(manager)
        finally:
            continuous_api.PagedAttentionCache = PagedAttentionCache
