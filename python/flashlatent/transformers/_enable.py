"""enable() and disable()."""

import importlib.metadata
import math
import re
import types

import torch
from transformers import GenerationMixin, PreTrainedModel

from .. import _native
from .._errors import InvalidArgumentError, UnavailableError, UnsupportedError
from ._batching import init_continuous_batching
from ._cache import LatentCache
from ._layout import layout_of
from ._modules import ATTENTION, LATENT_CLASSES, MODELS, STOCK_CLASSES
from ._pages import Pages
from ._step import fewest_expanded

TESTED = ((5, 17), (5, 18))  # the first version, and the first that is not tested


class _Enabled:
    """An enabled model's settings."""

    def __init__(self, layout, dims, pages):
        self.layout, self.dims, self.page_count = layout, dims, pages
        self._shared = None

    def __reduce__(self):
        """A copy of the model has the same settings, and pages of its own."""
        return _Enabled, (self.layout, self.dims, self.page_count)

    def shared_pages(self):
        """The pages of all caches, if enable() was given their number; else None."""
        if self.page_count is not None and self._shared is None:
            self._shared = Pages(self.layout, self.page_count, grows=False)
        return self._shared

    def pages_for(self, batch, tokens):
        """Pages for a batch of requests that begin with so many tokens."""
        shared = self.shared_pages()
        if shared is not None:
            return shared
        return Pages(self.layout, max(1, batch * (math.ceil(tokens / self.layout.page_size) + 1)), grows=True)


def enable(model, *, kv_format=None, page_size=64, pages=None, any_version=False):
    """Lets a model of DeepSeek-V2's or V3's architecture generate with FlashLatent; returns the model.

    kv_format    of the cache: 'bf16', 'fp16', 'fp8_656', or None: the model's dtype
    page_size    tokens per page, of generate(); generate_batch() has ContinuousBatchingConfig(block_size=...)
    pages        how many pages all generate() calls together have. These are kept between calls, and prompts that
                 begin with tokens they hold begin there. None: each call has pages of its own, as many as it needs
    any_version  also for versions of transformers that this module is not tested with

    generate(), generate_batch() and calls with past_key_values=LatentCache(model) use the cache; other calls are the
    model's own. After a change of weights (an adapter, say) with `pages` given, enable the model anew: pages hold
    latents of the old weights. Raises InvalidArgumentError for a wrong argument, UnsupportedError for a model or device
    that no kernel serves.
    """
    _check_version(any_version)
    attention = _attention_modules(model)
    device, dtype = _check_weights(model, attention)
    if pages is not None and (isinstance(pages, bool) or not isinstance(pages, int) or not 1 <= pages <= 1 << 28):
        raise InvalidArgumentError(f"pages is {pages!r}; 1 to {1 << 28}, or None for a cache that grows, is expected")
    layout = layout_of(model.config, dtype, device, kv_format, page_size)
    dims = model.config.qk_nope_head_dim, model.config.v_head_dim
    _check_kernels(layout, dims)
    disable(model)
    model.destroy_cached_continuous_batching_manager()  # its cache holds keys and values
    for module in (model.base_model, *attention):
        module.__class__ = LATENT_CLASSES[type(module)]
    model._flashlatent = _Enabled(layout, dims, pages)
    model._prepare_cache_for_generation = types.MethodType(_prepare_cache, model)
    model._prefill = types.MethodType(_prefill, model)
    model.init_continuous_batching = types.MethodType(init_continuous_batching, model)
    return model


def disable(model):
    """Gives a model its own attention back; nothing happens if it is not enabled. Returns the model."""
    if vars(model).pop("_flashlatent", None) is None:
        return model
    model.destroy_cached_continuous_batching_manager()
    for module in model.modules():
        module.__class__ = STOCK_CLASSES.get(type(module), type(module))
    for name in ("_prepare_cache_for_generation", "_prefill", "init_continuous_batching"):
        vars(model).pop(name, None)
    return model


def _check_version(any_version):
    text = importlib.metadata.version("transformers")
    version = tuple(int(number) for number in re.findall(r"\d+", text)[:2])
    if not any_version and not TESTED[0] <= version < TESTED[1]:
        first, last = (".".join(map(str, bound)) for bound in TESTED)
        raise UnavailableError(f"transformers is {text}; flashlatent.transformers is tested with {first} and newer, "
                               f"below {last}: install one of these, or give any_version=True")


def _attention_modules(model):
    if not isinstance(model, PreTrainedModel) or not isinstance(model, GenerationMixin):
        raise InvalidArgumentError(f"model is a {type(model).__name__}; a model of transformers that generates "
                                   "(DeepseekV3ForCausalLM, say) is expected")
    attention = [module for module in model.modules() if _stock(module) in ATTENTION]
    if not attention or _stock(model.base_model) not in MODELS or model.base_model is model:
        raise InvalidArgumentError(f"model is a {type(model).__name__} (model_type "
                                   f"'{getattr(model.config, 'model_type', None)}'); the architectures of DeepSeek-V2 "
                                   "and DeepSeek-V3 (model_type 'deepseek_v2', 'deepseek_v3') are supported")
    return attention


def _stock(module):
    """The class that a module has when it is not enabled."""
    return STOCK_CLASSES.get(type(module), type(module))


def _check_weights(model, attention):
    """(device, dtype) of a model whose attention weights are plain and on one device."""
    for module in attention:
        where = f"model's layer {module.layer_idx}"
        if "forward" in vars(module):
            raise InvalidArgumentError(f"{where} has a forward() of its own, as device_map over several devices, "
                                       "offloading and some adapters make it; load the model on one device, plain")
        if type(module.kv_b_proj) is not torch.nn.Linear or type(module.kv_b_proj.weight) is not torch.nn.Parameter:
            raise InvalidArgumentError(f"{where} has a kv_b_proj that is a {type(module.kv_b_proj).__name__} with a "
                                       f"{type(module.kv_b_proj.weight).__name__}; a torch.nn.Linear with its "
                                       "Parameter is expected (not quantised, no adapter, not spread over devices)")
    weights = [module.kv_b_proj.weight for module in attention]
    devices = {weight.device for weight in weights}
    if len(devices) > 1:
        raise InvalidArgumentError(f"model is on {', '.join(sorted(map(str, devices)))}; one device is expected")
    device, dtype = weights[0].device, weights[0].dtype
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise InvalidArgumentError(f"model.dtype is {dtype}; torch.bfloat16, torch.float16 or torch.float32 is "
                                   "expected")
    if device.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(f"model is on {device}; cpu or cuda is expected")
    return device, dtype


def _check_kernels(layout, dims):
    """Raises if no kernel of the device takes the two calls that a model makes."""
    common = {"batch": 1, "heads": layout.heads, "softmax_scale": 1.0, "max_pages": 1, "page_size": layout.page_size,
              "qk_dim": layout.latent + layout.rope, "v_dim": layout.latent, "causal": True,
              "dtype": "bf16" if layout.dtype == torch.bfloat16 else "fp16",
              "kv_format": "fp8_656" if layout.kv_format == "fp8_656" else "plain"}
    most = min(fewest_expanded(layout.latent, layout.rope, *dims), 256)
    for shape in ({"tokens": 1}, {"tokens": most, "ragged": True}):
        try:
            _native.Plan(_native.Problem(**common, **shape), device=str(layout.device))
        except (UnsupportedError, InvalidArgumentError) as error:
            raise UnsupportedError(f"model with {layout.heads} heads, kv_lora_rank {layout.latent}, qk_rope_head_dim "
                                   f"{layout.rope}, kv_format '{layout.kv_format}', page_size {layout.page_size} on "
                                   f"{layout.device}: {error}") from None


def _prepare_cache(model, generation_config, model_kwargs, generation_mode, batch_size, max_cache_length):
    """In place of transformers' method: generate()'s cache."""
    if generation_config.cache_implementation not in (None, "dynamic"):
        raise InvalidArgumentError(f"cache_implementation is '{generation_config.cache_implementation}'; the cache is "
                                   "FlashLatent's: leave it out, or call flashlatent.transformers.disable(model)")
    given = model_kwargs.get("past_key_values")
    if given is not None or generation_config.use_cache is False:
        return type(model)._prepare_cache_for_generation(model, generation_config, model_kwargs, generation_mode,
                                                         batch_size, max_cache_length)
    model_kwargs["past_key_values"] = LatentCache(model)
    return None


def _prefill(model, input_ids, generation_config, model_kwargs, *args, **options):
    """Runs before transformers' method: pages of a prompt that are cached already are not computed again."""
    cache, mask = model_kwargs.get("past_key_values"), model_kwargs.get("attention_mask")
    positions, tokens = model_kwargs.get("position_ids"), input_ids.shape[1]
    plain = (isinstance(cache, LatentCache) and generation_config.prefill_chunk_size is None and tokens > 1 and
             model_kwargs.get("inputs_embeds") is None and mask is not None and mask.shape == input_ids.shape and
             model._flashlatent.page_count is not None)
    if plain and bool(mask.all()) and (
            positions is None or bool((positions == torch.arange(tokens, device=positions.device)).all())):
        cache.reuse(input_ids)
    return type(model)._prefill(model, input_ids, generation_config, model_kwargs, *args, **options)
