"""Dense MLA decode in vLLM: caches in bf16, fp16, fp8_ds_mla, which is the library's fp8_656, and fp8, its e4m3.

Prefill, cache writes and absorbed projections are vLLM's own.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, List, Optional, Tuple, Union

import torch
import vllm.envs as envs
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.mla_attention import (MLACommonBackend, MLACommonDecodeMetadata,
                                                                MLACommonImpl, MLACommonMetadata,
                                                                MLACommonMetadataBuilder, QueryLenSupport)
from vllm.v1.attention.backend import AttentionCGSupport

from flashlatent import Step

from . import _refusals
from ._backend import HintedBuilder, LatentBackend, calls_per_plan
from ._options import setting
from ._queries import Queries

Query = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


class FlashLatentMLABackend(LatentBackend, MLACommonBackend):
    head_sizes: ClassVar[List[int]] = [320, 576]
    fp8: ClassVar[List[Any]] = ["fp8_ds_mla", "fp8", "fp8_e4m3"]
    supported_kv_cache_dtypes: ClassVar[List[Any]] = [*LatentBackend.plain, *fp8]

    @staticmethod
    def get_impl_cls() -> type:
        return FlashLatentMLAImpl

    @staticmethod
    def get_builder_cls() -> type:
        return FlashLatentMLAMetadataBuilder

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> Tuple[int, ...]:
        """Other layers' pages may lie between: the page stride is read from the tensor."""
        return (1, 0, 2, 3) if include_num_layers_dimension else (0, 1, 2)

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """Whether a batch is ragged is decided on the host (Queries)."""
        return False


@dataclass
class FlashLatentDecodeMetadata(MLACommonDecodeMetadata):
    run: int  # consecutive tokens of one rank, if ranks share contexts
    step: Step
    queries: Queries
    typical_tokens: int


class FlashLatentMLAMetadata(MLACommonMetadata):
    pass


class FlashLatentMLAMetadataBuilder(HintedBuilder, MLACommonMetadataBuilder):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.VARLEN

    def __init__(self, kv_cache_spec: Any, layer_names: List[str], vllm_config: Any, device: torch.device) -> None:
        if envs.VLLM_BATCH_INVARIANT:  # a batch with longer queries has other kernels
            self.query_len_support = QueryLenSupport.SINGLE_ONLY
        self._layer_names = layer_names  # vLLM's class may not keep them
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, FlashLatentMLAMetadata,
                         supports_dcp_with_varlen=True)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        if envs.VLLM_BATCH_INVARIANT:
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return cls._cudagraph_support

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        self._calls_per_plan = calls_per_plan(self._layer_names, fast_build)
        self._typical_tokens = self.typical_tokens(common_attn_metadata)
        return super().build(common_prefix_len, common_attn_metadata, fast_build)

    def _build_decode(self, block_table_tensor: torch.Tensor, seq_lens_device: torch.Tensor,
                      query_start_loc_cpu: torch.Tensor, query_start_loc_device: torch.Tensor, num_decode_tokens: int,
                      dcp_tot_seq_lens_device: Optional[torch.Tensor], **_: Any) -> FlashLatentDecodeMetadata:
        """If ranks share contexts, seq_lens_device counts the rank's own tokens, and dcp_tot_seq_lens_device all
        tokens."""
        return FlashLatentDecodeMetadata(
            block_table=block_table_tensor, seq_lens=seq_lens_device, dcp_tot_seq_lens=dcp_tot_seq_lens_device,
            run=self.cp_kv_cache_interleave_size, step=Step(calls_per_plan=self._calls_per_plan),
            queries=Queries.of(query_start_loc_cpu, query_start_loc_device, num_decode_tokens),
            typical_tokens=self._typical_tokens)


def _products() -> str:
    """The user's choice of products from an fp8 cache: --additional-config '{"flashlatent_products": "fp8"}'."""
    given = setting(get_current_vllm_config(), "flashlatent_products")
    value = "auto" if given is None else given
    if value not in ("auto", "bf16", "fp8"):
        raise ValueError(f"flashlatent: flashlatent_products in additional_config is {value!r}; 'auto', 'bf16' or "
                         "'fp8' is expected")
    return value


class FlashLatentMLAImpl(MLACommonImpl):
    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_mtp_with_cp_non_trivial_interleave_size: bool = True
    lse_base_on_e: bool = True

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int,
                 alibi_slopes: Optional[List[float]], sliding_window: Optional[int], kv_cache_dtype: str,
                 logits_soft_cap: Optional[float], attn_type: str, kv_sharing_target_layer_name: Optional[str],
                 **mla_args: Any) -> None:
        super().__init__(num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
                         logits_soft_cap, attn_type, kv_sharing_target_layer_name, **mla_args)
        _refusals.refuse("MLA decode", alibi_slopes=alibi_slopes, sliding_window=sliding_window,
                         logits_soft_cap=logits_soft_cap)
        _refusals.refuse_attn_type("MLA decode", attn_type)
        self.supports_quant_query_input = False
        self.batch_invariant = bool(envs.VLLM_BATCH_INVARIANT)
        self.products = _products()

    def forward_mqa(self, q: Query, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any,
                    layer: Any) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        q, q_rope = q if isinstance(q, tuple) else (q, None)
        decode = attn_metadata.decode
        options: dict = {"typical_tokens": decode.typical_tokens}
        lengths = decode.seq_lens
        if decode.dcp_tot_seq_lens is not None:  # drafts go by a token's place in the whole context
            lengths = decode.dcp_tot_seq_lens
            options["shard"] = self.dcp_rank, self.dcp_world_size, decode.run
        if self.kv_cache_dtype in ("fp8", "fp8_e4m3"):
            options.update(kv_scale=layer._k_scale.reshape(1), products=self.products)
        return decode.queries.attend(
            decode.step, q, kv_c_and_k_pe_cache.unsqueeze(2), decode.block_table, lengths,
            q_rope=q_rope, want_lse=self.need_to_return_lse_for_decode, v_dim=self.kv_lora_rank,
            softmax_scale=self.scale, batch_invariant=self.batch_invariant, **options)
