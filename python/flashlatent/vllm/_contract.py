"""What this package asks of vLLM, checked in vLLM's sources before anything of vLLM is imported.

A plugin runs early in every process. Importing attention layers so early would cost seconds, could initialise CUDA in a
process that forks later, and could import in a circle.
"""

import ast
import importlib.metadata
import importlib.util
import os
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

_LAYERS = "model_executor/layers/attention/"
_REGISTRY = "v1/attention/backends/registry.py"

# File, function or method, the arguments that it must have. An argument more is legal where it has a default, or
# where "**" says that ours takes any.
_NEEDS: Tuple[Tuple[str, str, str], ...] = (
    (_REGISTRY, "register_backend", "backend class_path"),
    ("v1/attention/backend.py", "AttentionBackend.validate_configuration",
     "cls head_size dtype kv_cache_dtype block_size use_mla has_sink use_sparse device_capability **"),
    ("v1/attention/backend.py", "AttentionBackend.supports_combination",
     "cls head_size dtype kv_cache_dtype block_size use_mla has_sink use_sparse use_mm_prefix device_capability"),
    ("v1/attention/backend.py", "AttentionMetadataBuilder.get_cudagraph_support", "cls vllm_config kv_cache_spec"),
    ("v1/attention/backend.py", "AttentionImpl.__init__",
     "self num_heads head_size scale num_kv_heads alibi_slopes sliding_window kv_cache_dtype logits_soft_cap attn_type "
     "kv_sharing_target_layer_name"),
    ("v1/attention/backend.py", "AttentionImpl.forward",
     "self layer query key value kv_cache attn_metadata output output_scale output_block_scale"),
    (_LAYERS + "mla_attention.py", "MLACommonBackend.is_mla", "cls"),
    (_LAYERS + "mla_attention.py", "MLACommonMetadataBuilder.__init__",
     "self kv_cache_spec layer_names vllm_config device metadata_cls"),
    (_LAYERS + "mla_attention.py", "MLACommonMetadataBuilder.build",
     "self common_prefix_len common_attn_metadata fast_build"),
    (_LAYERS + "mla_attention.py", "MLACommonMetadataBuilder._build_decode",
     "self block_table_tensor seq_lens_device query_start_loc_cpu query_start_loc_device num_decode_tokens "
     "dcp_tot_seq_lens_device **"),
    (_LAYERS + "mla_attention.py", "MLACommonImpl.__init__",
     "self num_heads head_size scale num_kv_heads alibi_slopes sliding_window kv_cache_dtype logits_soft_cap attn_type "
     "kv_sharing_target_layer_name **"),
    (_LAYERS + "mla_attention.py", "MLACommonImpl.forward_mqa", "self q kv_c_and_k_pe_cache attn_metadata layer"),
    (_LAYERS + "sparse_mla_attention.py", "SparseMLACommonMetadataBuilder.__init__",
     "self kv_cache_spec layer_names vllm_config device"),
    (_LAYERS + "sparse_mla_attention.py", "SparseMLACommonImpl.__init__",
     "self num_heads head_size scale num_kv_heads alibi_slopes sliding_window kv_cache_dtype logits_soft_cap attn_type "
     "kv_sharing_target_layer_name indexer topk_indices_buffer **"),
)

# What the layers of DeepSeek V4 and V4.1 call.
_V4_SHARED: Tuple[Tuple[str, str, str], ...] = (
    ("models/deepseek_v4/common/ops/cache_utils.py", "compute_global_topk_indices_and_lens",
     "topk_indices token_to_req_indices block_table block_size is_valid_token"),
    ("models/deepseek_v4/common/ops/fused_indexer_q.py", "fused_indexer_q_rope_quant",
     "positions index_q index_q_cos_sin_cache index_weights index_weights_softmax_scale index_weights_head_scale "
     "use_fp4 **"),
    ("utils/deep_gemm.py", "fp8_einsum", "**"),
)

# The contract of DeepSeek V4's own layer. If it does not fit, other models are still served.
_V4 = "models/deepseek_v4/nvidia/"
_V4_NEEDS: Tuple[Tuple[str, str, str], ...] = (
    (_V4 + "model.py", "_select_dsv4_attn_cls", "vllm_config"),
    (_V4 + "flashmla.py", "DeepseekV4FlashMLAAttention.get_padded_num_q_heads", "cls num_heads"),
    (_V4 + "flashmla.py", "DeepseekV4FlashMLAAttention.forward_mqa", "self q kv positions output"),
    (_V4 + "flashmla.py", "DeepseekV4FlashMLAAttention._forward_decode",
     "self q kv_cache swa_metadata attn_metadata swa_only output"),
    (_V4 + "flashmla.py", "DeepseekV4FlashMLAAttention._forward_prefill",
     "self q positions compressed_k_cache swa_k_cache output attn_metadata swa_metadata"),
    (_V4 + "flashmla.py", "DeepseekV4FlashMLAAttention._o_proj", "self o positions"),
    ("models/deepseek_v4/attention.py", "DeepseekV4Attention._fused_qnorm_rope_kv_insert",
     "self q kv positions attn_metadata"),
    *_V4_SHARED,
)

# The contract of DeepSeek V4.1's layer, which vLLM 0.33 has.
_V41 = "models/deepseek_v41/"
_V41_LAYER = _V41 + "nvidia/flashmla.py"
_V41_NEEDS: Tuple[Tuple[str, str, str], ...] = (
    (_V41 + "nvidia/model.py", "_select_dsv4_attn_cls", "vllm_config"),
    (_V41 + "attention.py", "_use_v41_mxfp8_kv_record", ""),
    (_V41 + "compressor.py", "DeepseekCompressor.insert_cache", "self latent positions rotary_emb"),
    (_V41_LAYER, "DeepseekV4FlashMLAAttention.get_padded_num_q_heads", "cls num_heads"),
    (_V41_LAYER, "DeepseekV4FlashMLAAttention.forward_mqa", "self q kv positions output"),
    (_V41_LAYER, "DeepseekV4FlashMLAAttention._forward_decode",
     "self q kv_cache swa_metadata attn_metadata swa_only output"),
    (_V41_LAYER, "DeepseekV4FlashMLAAttention._forward_prefill",
     "self q positions compressed_k_cache swa_k_cache output attn_metadata swa_metadata"),
    (_V41_LAYER, "DeepseekV4FlashMLAAttention._o_proj", "self attn_out positions"),
    (_V41 + "common/ops/indexer_k_store.py", "indexer_k_norm_rope_store",
     "k_pre positions cos_sin_cache rms_norm_weight rms_norm_eps k_cache kv_slot_mapping compress_ratio use_fp4_cache"),
    (_V41 + "attention.py", "DeepseekV4Attention._fused_qnorm_rope_kv_insert", "self q kv positions attn_metadata"),
    (_V41 + "attention.py", "DeepseekV4Attention._alloc_attn_out", "self num_tokens hidden_states"),
    *_V4_SHARED,
)

# The contract of sparse attention's indexer.
_INDEXER = "model_executor/layers/sparse_attn_indexer.py"
_INDEXER_NEEDS: Tuple[Tuple[str, str, str], ...] = (
    (_INDEXER, "SparseAttnIndexer.__init__", "self k_cache use_fp4_cache **"),
    (_INDEXER, "sparse_attn_indexer",
     "hidden_states k_cache_prefix kv_cache q_quant k weights quant_block_size scale_fmt topk_tokens "
     "topk_indices_buffer skip_k_cache_insert skip_topk_buffer_clear **"),
)


class Contract(NamedTuple):
    """What was found: vLLM's version, whether a backend may have its own name, and what does not fit."""

    version: str
    names: bool
    faults: List[str]
    v4_faults: List[str]  # of DeepSeek V4's layer alone
    v41_faults: List[str]  # of DeepSeek V4.1's
    indexer_faults: List[str]


class _Function(NamedTuple):
    arguments: List[str]
    required: int  # so many of them have no default
    anything: bool  # *args or **kwargs


def read(root: Optional[str] = None, version: Optional[str] = None) -> Contract:
    """The contract of the vLLM that an import would find, or of the package folder `root`."""
    if root is None:
        found = importlib.util.find_spec("vllm")
        if found is None or not found.submodule_search_locations:
            return Contract("(none)", False, ["vllm is not installed"], [], [], [])
        root = list(found.submodule_search_locations)[0]
    if version is None:
        try:
            version = importlib.metadata.version("vllm")
        except importlib.metadata.PackageNotFoundError:
            version = "(of unknown version)"
    files: Dict[str, Dict[str, _Function]] = {}
    faults = [list(_faults(root, needs, files)) for needs in (_NEEDS, _V4_NEEDS, _V41_NEEDS, _INDEXER_NEEDS)]
    return Contract(version, "AttentionBackendEnum.register" in files[_REGISTRY], *faults)


def _faults(root: str, needs: Tuple[Tuple[str, str, str], ...],
            files: Dict[str, Dict[str, _Function]]) -> Iterator[str]:
    for file, name, declared in needs:
        if file not in files:
            files[file] = _functions(os.path.join(root, *file.split("/")))
        fault = _fault(files[file].get(name), declared.split())
        if fault:
            yield f"{name} in vllm/{file} {fault}"


def _functions(path: str) -> Dict[str, _Function]:
    """The functions of a source file and the methods of its classes, by qualified name; none if it is not there."""
    try:
        with open(path, encoding="utf-8") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError):
        return {}
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = _function(node)
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    found[f"{node.name}.{member.name}"] = _function(member)
    return found


def _function(node: ast.FunctionDef) -> _Function:
    positional = [argument.arg for argument in node.args.posonlyargs + node.args.args]
    keywords = [argument.arg for argument in node.args.kwonlyargs]
    optional = {positional[len(positional) - 1 - i] for i in range(len(node.args.defaults))}
    optional |= {name for name, default in zip(keywords, node.args.kw_defaults) if default is not None}
    arguments = [name for name in positional + keywords if name not in optional]
    required = len(arguments)
    arguments += [name for name in positional + keywords if name in optional]
    return _Function(arguments, required, bool(node.args.vararg or node.args.kwarg))


def _fault(function: Optional[_Function], needed: List[str]) -> str:
    if function is None:
        return "is not there"
    anything = "**" in needed
    needed = [name for name in needed if name != "**"]
    missing = [name for name in needed if name not in function.arguments]
    if missing and not function.anything:
        return f"has no argument {', '.join(missing)}"
    more = [name for name in function.arguments[:function.required] if name not in needed]
    if more and not anything:
        return f"asks for {', '.join(more)}, too"
    return ""
