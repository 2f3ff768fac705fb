"""What errors say of an unknown argument: its name in this package, or which call takes it."""

import difflib

from . import _native

# Names of other packages, and what they are here.
MEANT = {
    "softmax_scale": ("sm_scale", "scale", "scaling", "scale_attn", "softmax_scaling", "attn_scale", "scale_value"),
    "v_dim": ("head_dim_v", "d_v", "dv", "value_dim", "head_size_v", "headdim_v", "kv_lora_rank"),
    "qk_dim": ("head_dim", "head_size", "d_qk", "head_dim_qk", "headdim"),
    "kv_cache": ("k_cache", "cache", "paged_kv_cache", "kv", "blocked_k", "ckv_cache", "latent_cache", "kv_buffer"),
    "key_cache": ("k_cache", "k", "keys"),
    "value_cache": ("v_cache", "v", "values"),
    "q": ("query", "queries", "q_nope"),
    "block_table": ("block_tables", "page_table", "page_tables", "block_indices", "kv_indices", "paged_kv_indices"),
    "cache_seqlens": ("seq_lens", "seqlens", "seqused_k", "cache_lens", "context_lens", "kv_lens", "kv_len_arr",
                      "lengths", "cache_seqlens_k", "seqlens_k"),
    "lengths": ("cache_seqlens", "topk_length", "seq_lens", "seqlens", "seqused_k", "kv_lens"),
    "cu_seqlens_q": ("qo_indptr", "query_start_loc", "cu_q", "cu_query_lens", "q_indptr", "cu_seqlens"),
    "cu_seqlens": ("indptr", "kv_indptr", "cu_seqlens_k", "cu_seq_lens", "workspace_starts"),
    "indices": ("topk_indices", "indices_in_kvcache", "topk_idx"),
    "topk_length": ("topk_lengths", "topk_lens", "valid_counts"),
    "attn_sink": ("sinks", "sink", "s_aux", "attn_sinks", "attention_sink", "sink_ptr"),
    "causal": ("is_causal", "causal_mask", "mask_mode"),
    "window": ("window_size", "sliding_window", "window_left", "local_window_size"),
    "soft_cap": ("softcap", "logits_soft_cap", "logit_cap", "attn_logit_softcapping"),
    "kv_scale": ("k_scale", "descale_k", "k_descale", "kv_dequant_scale", "bmm1_scale", "scale_kv"),
    "key_scale": ("k_scale", "descale_k", "k_descale", "scale_k"),
    "value_scale": ("v_scale", "descale_v", "v_descale", "scale_v"),
    "q_scale": ("descale_q", "q_descale", "query_scale", "scale_q"),
    "heads": ("num_heads", "h_q", "num_q_heads", "num_qo_heads", "nheads", "n_heads", "num_attention_heads"),
    "kv_heads": ("num_kv_heads", "h_kv", "h_k", "num_heads_k", "nheads_k", "num_key_value_heads"),
    "batch": ("batch_size", "bs", "num_seqs", "requests", "b"),
    "tokens": ("s_q", "seqlen_q", "max_seqlen_q", "q_len", "num_tokens", "max_query_len", "q_tokens"),
    "page_size": ("block_size", "tokens_per_page", "page_block_size"),
    "pages": ("num_pages", "num_blocks", "block_count", "capacity"),
    "max_pages": ("max_blocks", "max_num_pages", "max_num_blocks", "max_pages_per_seq", "max_blocks_per_seq"),
    "topk": ("top_k", "num_topk", "index_topk"),
    "out": ("output", "o", "out_"),
    "lse": ("softmax_lse", "out_lse", "logsumexp", "lse_out"),
    "workspace": ("workspace_buffer", "float_workspace_buffer", "tmp", "scratch"),
    "kv_format": ("kv_cache_dtype", "cache_dtype", "format", "kv_dtype", "is_fp8_kvcache"),
    "format": ("kv_format", "kv_cache_dtype", "to_format"),
    "dtype": ("q_data_type", "data_type", "torch_dtype"),
    "slot_mapping": ("slots", "slot_indices", "loc", "out_cache_loc"),
    "latent": ("kv_c", "ckv", "kv_c_normed", "compressed_kv", "nope"),
    "rope": ("k_pe", "kpe", "k_rope", "pe"),
    "batch_invariant": ("enable_batch_invariant", "deterministic", "fixed_split_size"),
    "check_inputs": ("validate", "check", "debug"),
    "threads": ("num_threads", "n_threads", "nthreads"),
    "alibi_slopes": ("alibi", "slopes"),
    "typical_tokens": ("max_seqlen_k", "max_seq_len", "max_seqlen", "max_context_len", "expected_length"),
    "extra_kv_cache": ("extra_k_cache",),
    "extra_indices": ("extra_indices_in_kvcache",),
    "calls_per_plan": ("num_layers", "layers"),
}

# Which other functions may take what a function does not.
_OTHERS = {
    "Problem": ("Plan", "Plan.schedule", "Plan.decode"),
    "Plan": ("Problem", "Plan.schedule", "Plan.decode", "Plan.decode_kv"),
    "Plan.like": ("Problem", "Plan.schedule", "Plan.decode", "Plan.decode_kv"),
    "Plan.schedule": ("Problem", "Plan", "Plan.decode", "Plan.decode_kv"),
    "Plan.decode": ("Problem", "Plan", "Plan.schedule", "Plan.decode_kv"),
    "Plan.decode_kv": ("Problem", "Plan", "Plan.schedule", "Plan.decode"),
    "Step": ("Step.decode", "Step.decode_kv"),
    "Step.decode": ("Step", "Step.decode_kv"),
    "Step.decode_kv": ("Step", "Step.decode"),
    "explain": ("Problem",),
    "describe_plan": ("Problem",),
    "PagePool": ("PagePool.create", "PagePool.append", "PagePool.write_page_table"),
}

_SENTENCES = {
    "return_lse": "lse is always returned",
    "return_softmax_lse": "lse is always returned",
    "num_splits": "kernels split long requests by themselves",
    "tile_scheduler_metadata": "a Plan or a Step holds the schedule",
    "scheduler_metadata": "a Plan or a Step holds the schedule",
    "device": "a call runs where its arrays are",
    "fa_version": "kernel= forces a kernel",
    "backend": "a call runs where its arrays are; kernel= forces a kernel",
}


def _takes(place):
    """The arguments of a function by its name, 'Plan' being the constructor's."""
    from ._arguments import parameters

    owner, _, method = place.partition(".")
    function = getattr(getattr(_native, owner), method) if method else getattr(_native, f"_{owner}")
    return [parameter.name for parameter in parameters(function)]


def hint(option, function, names) -> str:
    """The end of a message about `option`, which `function` ('Plan.decode', say) does not have among its `names`."""
    meant = [name for name, others in MEANT.items() if option in others]
    here = [name for name in meant if name in names]
    if here:
        return f"; '{here[0]}' is what it is called here"
    for name in (option, *meant):
        places = [f"{place}()" for place in _OTHERS.get(function, ()) if name in _takes(place)]
        if places:
            verb = "takes" if len(places) == 1 else "take"
            called = "" if name == option else f", as '{name}'"
            return f"; {', '.join(places[:-1])}{' and ' if places[1:] else ''}{places[-1]} {verb} it{called}"
    if option in _SENTENCES:
        return f"; {_SENTENCES[option]}"
    close = difflib.get_close_matches(option, names, 1)
    return f"; '{close[0]}' is near" if close else f"; there are {', '.join(names)}"
