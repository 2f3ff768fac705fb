"""A small MLA model's configuration, a batch of decode requests and its layer in plain float32, for tests of
flashlatent.vllm, on the GPU where there is one."""

import contextlib
from types import SimpleNamespace

import torch

HEADS, NOPE, ROPE, RANK, V_DIM, TOPK = 4, 128, 64, 512, 128, 128
SCALE = (NOPE + ROPE)**-0.5
K_SCALE = 0.02  # of an fp8 cache
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def model(dtype, sparse=False, use_mla=True):
    """What layers and builders ask vLLM's ModelConfig, which itself would inspect the model in a process of its own."""
    text = SimpleNamespace(q_lora_rank=None, kv_lora_rank=RANK, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE,
                           v_head_dim=V_DIM)
    if sparse:
        text.index_topk = TOPK
    return SimpleNamespace(
        dtype=dtype, hf_config=text, hf_text_config=text, use_mla=use_mla, max_model_len=2048,
        model_arch_config=SimpleNamespace(total_num_attention_heads=HEADS), is_deepseek_mla=use_mla,
        is_diffusion=False,
        get_num_attention_heads=lambda parallel: HEADS, get_head_size=lambda: RANK + ROPE,
        get_num_kv_heads=lambda parallel: 1)


@contextlib.contextmanager
def vllm_config(dtype=torch.bfloat16, cache_dtype="auto", block_size=16, sparse=False, use_mla=True, speculative=0):
    """vLLM's configuration of such a model, as the current one."""
    from vllm.config import CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config

    config = VllmConfig(device_config=DeviceConfig(device="cpu"),
                        cache_config=CacheConfig(block_size=block_size, cache_dtype=cache_dtype))
    config.model_config = model(dtype, sparse, use_mla)
    if speculative:
        config.speculative_config = SimpleNamespace(num_speculative_tokens=speculative, parallel_drafting=False,
                                                    method="ngram")
    with set_current_vllm_config(config):
        yield config


class Layer(torch.nn.Module):
    """vLLM's MLAttention of this configuration with the backend under test, and the same layer in plain float32."""

    def __init__(self, config, backend, scale=SCALE, indexer_buffer=None):
        super().__init__()
        from vllm.model_executor.layers.attention import mla_attention

        generator = torch.Generator().manual_seed(1)
        dtype = config.model_config.dtype
        self.weight = (torch.randn(HEADS * (NOPE + V_DIM), RANK, generator=generator) * RANK**-0.5).to(dtype)
        projection = torch.nn.Linear(RANK, HEADS * (NOPE + V_DIM), bias=False)
        projection.weight = torch.nn.Parameter(self.weight, requires_grad=False)
        more = {} if indexer_buffer is None else dict(use_sparse=True, topk_indices_buffer=indexer_buffer)
        original = mla_attention.get_mla_prefill_backend
        mla_attention.get_mla_prefill_backend = lambda config: Prefill  # those of vLLM are GPU code
        try:
            self.attention = mla_attention.MLAAttention(
                num_heads=HEADS, scale=scale, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=V_DIM,
                q_lora_rank=None, kv_lora_rank=RANK, kv_b_proj=projection, cache_config=config.cache_config,
                prefix="layer", attn_backend=backend, **more)
        finally:
            mla_attention.get_mla_prefill_backend = original
        self.attention.impl.dcp_world_size = 1  # there are no process groups
        self.attention._k_scale.fill_(K_SCALE)
        up = self.weight.T.view(RANK, HEADS, NOPE + V_DIM)
        self.attention.W_UK_T = up[..., :NOPE].permute(1, 2, 0).contiguous()
        self.attention.W_UV = up[..., NOPE:].transpose(0, 1).contiguous()
        for name, tensor in list(vars(self.attention).items()):
            if isinstance(tensor, torch.Tensor):
                setattr(self.attention, name, tensor.to(DEVICE))
        self.attention.to(DEVICE)

    def plain(self, q, latent, rope, seen):
        """Query tokens (n, HEADS, NOPE + ROPE) over tokens' latent and RoPE parts; seen (n, tokens) says which."""
        kv = (latent.float() @ self.weight.float().T).view(-1, HEADS, NOPE + V_DIM)
        keys = torch.cat([kv[..., :NOPE], rope.float()[:, None].expand(-1, HEADS, ROPE)], -1)
        scores = torch.einsum("nhd,thd->hnt", q.float(), keys) * SCALE
        scores = scores.masked_fill(~seen[None], float("-inf"))
        out = torch.einsum("hnt,thv->nhv", torch.nan_to_num(scores.softmax(-1)), kv[..., NOPE:])
        return out, scores.logsumexp(-1).T


class Prefill:
    """In place of vLLM's prefill backends, which are not run."""

    def __init__(self, **_):
        pass

    def clone(self):
        return self

    def get_name(self):
        return "NONE"


class Batch:
    """Requests with cached tokens and new ones, their cache, and what vLLM hands to metadata builders."""

    def __init__(self, config, lengths, queries, padding=0, cache_format="bf16", stride_pages=1):
        import flashlatent

        generator = torch.Generator().manual_seed(2)
        size = config.cache_config.block_size
        dtype = config.model_config.dtype
        self.lengths, self.queries, self.padding = lengths, queries, padding
        self.latent = [torch.randn(n, RANK, generator=generator).to(dtype) for n in lengths]
        self.rope = [torch.randn(n, ROPE, generator=generator).to(dtype) for n in lengths]
        pages = [-(-n // size) for n in lengths]
        numbers = torch.randperm(sum(pages) + 3, generator=generator).int()
        self.table = torch.full((len(lengths) + padding, max(pages) + 1), -1, dtype=torch.int32)
        self.table[len(lengths):] = 0
        shape = (len(numbers), stride_pages, size)
        if cache_format == "fp8_ds_mla":
            whole = torch.full((*shape, 656), 127, dtype=torch.uint8)
        elif cache_format == "fp8":
            whole = torch.full((*shape, RANK + ROPE), 127, dtype=torch.uint8)
        else:
            whole = torch.full((*shape, RANK + ROPE), float("nan"), dtype=dtype)
        self.cache = whole[:, 0]
        at = 0
        for i, n in enumerate(lengths):
            self.table[i, :pages[i]] = numbers[at:at + pages[i]]
            at += pages[i]
            tokens = torch.arange(n)
            slots = self.table[i, tokens // size].long() * size + tokens % size
            if cache_format == "fp8":
                rows = torch.cat([self.latent[i], self.rope[i]], 1).float() / K_SCALE
                e4m3 = rows.clamp(-448, 448).to(torch.float8_e4m3fn)
                self.cache[slots // size, slots % size] = e4m3.view(torch.uint8)
                self.latent[i], self.rope[i] = (e4m3.float() * K_SCALE).split([RANK, ROPE], 1)
            else:
                flashlatent.append_latent(self.latent[i], self.rope[i], slots, self.cache.unsqueeze(2))
        if cache_format == "fp8_ds_mla":  # what readers of the cache see
            for i, n in enumerate(lengths):
                rows = torch.empty(n, RANK + ROPE, dtype=dtype)
                flashlatent.gather_cache(self.cache.unsqueeze(2), self.table[i:i + 1],
                                         torch.tensor([0, n], dtype=torch.int32), out=rows.unsqueeze(1))
                self.latent[i], self.rope[i] = rows[:, :RANK], rows[:, RANK:]
        self.rows = sum(queries) + padding * max(queries)
        self.q = torch.randn(self.rows, HEADS, NOPE + ROPE, generator=generator).to(dtype)
        self.cache, self.table, self.q = whole.to(DEVICE)[:, 0], self.table.to(DEVICE), self.q.to(DEVICE)

    def common(self):
        from vllm.v1.attention.backend import CommonAttentionMetadata

        starts = torch.tensor([0] + self.queries + [0] * self.padding, dtype=torch.int32).cumsum(0).int()
        lengths = torch.tensor(self.lengths + [0] * self.padding, dtype=torch.int32)
        return CommonAttentionMetadata(
            query_start_loc=starts.to(DEVICE), query_start_loc_cpu=starts, seq_lens=lengths.to(DEVICE),
            num_reqs=len(lengths), num_actual_tokens=self.rows, max_query_len=max(self.queries),
            max_seq_len=max(self.lengths), block_table_tensor=self.table,
            slot_mapping=torch.zeros(self.rows, dtype=torch.int64, device=DEVICE),
            seq_lens_cpu_upper_bound=lengths.clone())

    def plain(self, layer, chosen=None):
        """(out, lse) of the layer in float32; chosen: the tokens that each query token attends to."""
        outs, lses, row = [], [], 0
        for i, (n, s) in enumerate(zip(self.lengths, self.queries)):
            seen = torch.arange(n)[None] < (n - s + 1 + torch.arange(s))[:, None]
            if chosen is not None:
                for t in range(s):
                    seen[t] &= torch.isin(torch.arange(n), chosen[row + t])
            out, lse = layer.plain(self.q[row:row + s].cpu(), self.latent[i], self.rope[i], seen)
            outs.append(out)
            lses.append(lse)
            row += s
        return torch.cat(outs), torch.cat(lses)
