"""The names of the package flash_mla, on this library: change the import, keep the calls.

    from flashlatent.flash_mla import flash_mla_with_kvcache, get_mla_metadata

    metadata, num_splits = get_mla_metadata()          # once per step
    out, lse = flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, 512, metadata, num_splits,
                                      causal=True)     # once per layer

Tensors are torch's, on a GPU or on the CPU. Beyond the original: any head count, page size and topk, any strides, fp16,
empty rows. Metadata that is older than the lengths, or shared by layers of several shapes, gives right results and only
balances less well. In a CUDA graph the first call with a metadata object captures the plan too, which follows the
lengths at each replay.

    python -m flashlatent.flash_mla PROGRAM [ARGUMENT...]

runs a Python program whose `import flash_mla` gets this package. The module flash_mla_interface, from which engines
import, exists here, too; install() puts this package where engines import flash_mla from. Functions of flash_mla that
are not implemented here raise UnsupportedError, a NotImplementedError, which names them.
"""

from .. import _needs_torch  # before the others
from . import fused_norm_rope_attn_rope_cast
from ._install import install
from .flash_mla_interface import (FlashMLASchedMeta, flash_attn_varlen_func, flash_attn_varlen_kvpacked_func,
                                  flash_attn_varlen_qkvpacked_func, flash_mla_sparse_fwd, flash_mla_with_kvcache,
                                  flash_mla_with_kvcache_fp8, get_mla_decoding_metadata, get_mla_metadata,
                                  get_mla_metadata_dense_fp8)

__all__ = [
    "FlashMLASchedMeta", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func", "flash_mla_sparse_fwd", "flash_mla_with_kvcache",
    "flash_mla_with_kvcache_fp8", "fused_norm_rope_attn_rope_cast", "get_mla_decoding_metadata", "get_mla_metadata",
    "get_mla_metadata_dense_fp8", "install",
]
