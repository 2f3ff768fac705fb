"""flashlatent.vllm against an unpacked vLLM: its classes, and a decode layer beside a float32 one, on CPU tensors
where there is no GPU. FLASHLATENT_VLLM names the folder to import vllm from; a version takes a process of its own."""

import importlib.util
import inspect
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
TREE = os.environ.get("FLASHLATENT_VLLM")
if not TREE:
    pytest.skip("FLASHLATENT_VLLM is not set; scripts/check engines sets it", allow_module_level=True)
sys.path.insert(0, TREE)
sys.path.insert(0, os.path.dirname(__file__))

import flashlatent.vllm  # noqa: E402
import vllm_case as case  # noqa: E402
from flashlatent import _sparse  # noqa: E402
from flashlatent.vllm import _refusals  # noqa: E402

flashlatent.vllm.register()


def requests_of_tokens(starts, out, mapped, tokens):
    """What a GPU kernel of vLLM 0.33 writes: each token's request, 0 for padding."""
    out[:tokens] = 0
    out[:mapped] = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff()).int()
    return out[:tokens]


@pytest.fixture(autouse=True)
def no_driver_and_no_process_groups(monkeypatch):
    """In place of what takes a GPU: pinned memory, a kernel, communication."""
    from vllm.model_executor.layers.attention import mla_attention, sparse_mla_attention
    from vllm.v1.attention import backend
    for module in (mla_attention, sparse_mla_attention, backend):
        if hasattr(module, "PIN_MEMORY"):
            monkeypatch.setattr(module, "PIN_MEMORY", False)
        if hasattr(module, "np_to_pinned_tensor"):
            monkeypatch.setattr(module, "np_to_pinned_tensor", torch.from_numpy)
    if importlib.util.find_spec("vllm.v1.attention.ops.metadata"):
        from vllm.v1.attention.ops import metadata
        monkeypatch.setattr(metadata, "compute_token_to_req_indices", requests_of_tokens)
    if hasattr(sparse_mla_attention, "get_tensor_model_parallel_world_size"):
        monkeypatch.setattr(sparse_mla_attention, "get_tensor_model_parallel_world_size", lambda: 1)


def backend_class():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    return AttentionBackendEnum[flashlatent.vllm.backend_name()].get_class()


@pytest.fixture
def on_gpu(monkeypatch):
    """As if the package had its CUDA backend."""
    monkeypatch.setattr(_refusals, "cuda_reason", lambda: "")


def reasons(backend, **more):
    from vllm.platforms.interface import DeviceCapability
    options = dict(head_size=576, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=64, use_mla=True,
                   has_sink=False, use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False,
                   device_capability=DeviceCapability(9, 0), attn_type="decoder")
    options.update(more)
    return backend.validate_configuration(**options)


def test_registers_once_under_the_name_of_this_version():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    expected = "FLASHLATENT" if hasattr(AttentionBackendEnum, "register") else "CUSTOM"
    flashlatent.vllm.register()
    assert flashlatent.vllm.backend_name() == expected
    assert AttentionBackendEnum[expected].get_path() == "flashlatent.vllm.backends.FlashLatentBackend"


def test_a_spawned_process_reads_the_name_before_it_loads_plugins():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    data = pickle.dumps(AttentionBackendEnum[flashlatent.vllm.backend_name()])
    code = f"import pickle, sys; sys.path.insert(0, {TREE!r}); print(pickle.loads(bytes.fromhex('{data.hex()}')).name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.split()[-1:] == [flashlatent.vllm.backend_name()], done.stderr


def test_dense_configurations(on_gpu):
    with case.vllm_config():
        backend = backend_class()
        assert backend.get_name() == flashlatent.vllm.backend_name()
        for dtype, cache in [(torch.bfloat16, "auto"), (torch.float16, "auto"), (torch.float16, "float16"),
                             (torch.bfloat16, "bfloat16"), (torch.bfloat16, "fp8_ds_mla"), (torch.bfloat16, "fp8"),
                             (torch.bfloat16, "fp8_e4m3")]:
            for size in (16, 48, 64, None):
                assert reasons(backend, dtype=dtype, kv_cache_dtype=cache, block_size=size) == []
        assert reasons(backend, use_batch_invariant=True) == []
        for fault, sentence in [
                (dict(block_size=24), "block_size is 24; a multiple of 16 is expected"),
                (dict(kv_cache_dtype="fp8_e5m2"), "is fp8_e5m2 and dtype is bfloat16; auto, bfloat16 or, with"),
                (dict(kv_cache_dtype="fp8", dtype=torch.float16), "fp8 and dtype is float16; bfloat16 is expected"),
                (dict(kv_cache_dtype="fp8", head_size=320), "fp8 and head_size is 320; 576 is expected beside it"),
                (dict(kv_cache_dtype="fp8_ds_mla", dtype=torch.float16), "bfloat16 is expected beside it"),
                (dict(head_size=512), "head_size is 512; 320 or 576"),
                (dict(head_size=320, kv_cache_dtype="fp8_ds_mla"), "fp8_ds_mla and head_size is 320; 576"),
                (dict(use_sparse=True), "sparse not supported"),
                (dict(use_mla=False), "non-MLA not supported")]:
            assert any(sentence in reason for reason in reasons(backend, **fault)), (fault, reasons(backend, **fault))


@pytest.mark.skipif(case.DEVICE.type != "cpu", reason="this build has CUDA")
def test_a_build_without_cuda_says_so():
    with case.vllm_config():
        assert "flashlatent cannot use the GPU: backend cuda" in " ".join(reasons(backend_class()))


def test_sparse_models_get_the_sparse_backend(on_gpu):
    with case.vllm_config(sparse=True):
        backend = backend_class()
        assert backend.is_sparse() and reasons(backend, use_sparse=True) == []
        assert reasons(backend, use_sparse=True, kv_cache_dtype="fp8_ds_mla") == []
        assert any("kv_cache_dtype is fp8 and" in reason for reason in reasons(backend, kv_cache_dtype="fp8"))
        assert reasons(backend, use_sparse=True, use_batch_invariant=True) == ["batch invariance not supported"]


def test_methods_take_what_vllm_passes():
    """Every method that overrides one of vLLM's can be called with that one's arguments."""
    from flashlatent.vllm import key_value, mla, sparse_mla
    compared = 0
    for module in (mla, sparse_mla, key_value):
        for cls in (c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__):
            inherited = {name: method for base in reversed(cls.__mro__) if base.__module__.startswith("flashlatent")
                         for name, method in vars(base).items()}
            for name, method in inherited.items():
                bases = [vars(b)[name] for b in cls.__mro__[1:] if b.__module__.startswith("vllm") and name in vars(b)]
                method, base = getattr(method, "__func__", method), bases and getattr(bases[0], "__func__", bases[0])
                if not inspect.isfunction(method) or not inspect.isfunction(base):
                    continue
                if method.__code__.co_filename == "<string>":  # written by dataclass
                    continue
                theirs = inspect.signature(base).parameters.values()
                ours = inspect.signature(method)
                given = [p for p in theirs if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
                ours.bind(**{p.name: None for p in given if p.name in ours.parameters or any(
                    o.kind == o.VAR_KEYWORD for o in ours.parameters.values()) or p.default is p.empty})
                compared += 1
    assert compared > 20


def decode(config, batch, layer=None, with_lse=True):
    """The rows of the layer's output, and lse, through the builder, forward_impl() and forward_mqa()."""
    layer = layer or case.Layer(config, backend_class())
    backend = layer.attention.attn_backend
    builder = backend.get_builder_cls()(layer.attention.get_kv_cache_spec(config), ["layer"], config,
                                        case.DEVICE)
    metadata = builder.build(0, batch.common())
    assert metadata.num_decodes == len(batch.lengths) + batch.padding and metadata.num_prefills == 0
    layer.attention.kv_cache = batch.cache
    output = torch.full((batch.rows, case.HEADS * case.V_DIM), float("nan"), dtype=batch.q.dtype, device=case.DEVICE)
    layer.attention.forward_impl(batch.q, batch.q[:, 0, :case.RANK], batch.q[:, :1, :case.ROPE], batch.cache, metadata,
                                 output=output)
    if not with_lse:
        return layer, output.view(batch.rows, case.HEADS, case.V_DIM).cpu(), None
    layer.attention.impl.need_to_return_lse_for_decode = True
    _, lse = layer.attention.impl.forward_mqa(absorbed_queries(batch, layer), batch.cache, metadata, layer.attention)
    return layer, output.view(batch.rows, case.HEADS, case.V_DIM).cpu(), lse.cpu()


# Rounding of absorbed queries, of P and of out: some 4 roundings of 2^-9 (bf16) or 2^-12 (fp16) of values up to 1.
TOLERANCE = {torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


def compare(batch, layer, out, lse, chosen=None):
    expected, expected_lse = batch.plain(layer, chosen)
    n = expected.shape[0]
    bound = TOLERANCE[batch.q.dtype]
    assert (out[:n].float() - expected).abs().max() < bound * max(1, expected.abs().max().item())
    assert lse.shape == (batch.rows, case.HEADS) and lse.dtype == torch.float32
    assert (lse[:n] - expected_lse).abs().max() < 4 * bound
    assert not out.isnan().any()


@pytest.mark.parametrize("dtype, cache", [(torch.bfloat16, "auto"), (torch.float16, "auto"),
                                          (torch.bfloat16, "fp8_ds_mla"), (torch.bfloat16, "fp8")])
@pytest.mark.parametrize("queries, padding", [([1, 1, 1], 0), ([1, 1, 1], 2), ([4, 4, 4], 0), ([4, 4, 4], 1),
                                              ([2, 1, 4], 0), ([1, 2, 1], 1)])
def test_dense_decode(dtype, cache, queries, padding):
    with case.vllm_config(dtype, cache, speculative=3) as config:
        batch = case.Batch(config, [40, 5, 131], queries, padding, cache)
        layer, out, lse = decode(config, batch)
        compare(batch, layer, out, lse)


@pytest.mark.parametrize("queries", [[1, 1, 1], [2, 1, 4]])
def test_fp8_products_by_additional_config(queries):
    outs = {}
    for products in ("bf16", "fp8"):
        with case.vllm_config(torch.bfloat16, "fp8", speculative=3) as config:
            config.additional_config = {"flashlatent_products": products}
            batch = case.Batch(config, [40, 5, 131], queries, 0, "fp8")
            layer, outs[products], _ = decode(config, batch)
            expected, _ = batch.plain(layer)
            # e4m3 has 3 bits of mantissa: queries and P are off by up to 1/16.
            assert (outs[products].float() - expected).abs().max() < (0.015 if products == "bf16" else 0.15)
    assert not torch.equal(outs["bf16"], outs["fp8"])


def test_an_unknown_choice_of_products_is_refused():
    with case.vllm_config() as config:
        config.additional_config = {"flashlatent_products": "int8"}
        with pytest.raises(ValueError, match="flashlatent_products in additional_config is 'int8'; 'auto', 'bf16' or"):
            case.Layer(config, backend_class())


def test_layers_between_pages_and_other_block_sizes():
    for size, stride in ((48, 3), (64, 2)):
        with case.vllm_config(block_size=size) as config:
            batch = case.Batch(config, [200, 64], [1, 1], stride_pages=stride)
            layer, out, lse = decode(config, batch)
            compare(batch, layer, out, lse)


def test_batch_invariant_results_do_not_depend_on_batch_mates(monkeypatch):
    import vllm.envs as envs
    monkeypatch.setattr(envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    with case.vllm_config(speculative=3) as config:
        layer = case.Layer(config, backend_class())
        assert layer.attention.impl.batch_invariant
        builder = layer.attention.attn_backend.get_builder_cls()
        assert builder.get_cudagraph_support(config, None).name == "UNIFORM_SINGLE_TOKEN_DECODE"
        both = case.Batch(config, [131, 300], [1, 1])
        _, two, _ = decode(config, both, layer=layer)
        both.lengths, both.queries, both.table, both.rows = [131], [1], both.table[:1], 1
        both.q = both.q[:1]
        _, one, _ = decode(config, both, layer=layer)
        assert torch.equal(one[0], two[0])


def sparse_case(config, cache, stride_pages=1, lengths=(40, 5, 131), queries=(1, 2, 1)):
    batch = case.Batch(config, list(lengths), list(queries), cache_format=cache, stride_pages=stride_pages)
    buffer = torch.full((batch.rows + 4, case.TOPK), -1, dtype=torch.int32, device=case.DEVICE)
    row = 0
    generator = torch.Generator().manual_seed(3)
    for n, s in zip(batch.lengths, batch.queries):
        for t in range(s):
            seen = n - s + t + 1
            some = torch.randperm(seen, generator=generator)[:min(seen, 100)].int()
            buffer[row, :len(some)] = some
            row += 1
    return batch, buffer


@pytest.mark.parametrize("cache", ["auto", "fp8_ds_mla"])
def test_sparse_decode(cache):
    with case.vllm_config(cache_dtype=cache, sparse=True, speculative=1) as config:
        batch, buffer = sparse_case(config, cache)
        layer = case.Layer(config, backend_class(), indexer_buffer=buffer)
        layer, out, lse = decode(config, batch, layer=layer)
        compare(batch, layer, out, lse, buffer.cpu())


def absorbed_queries(batch, layer):
    nope, rope = batch.q.split([case.NOPE, case.ROPE], -1)
    return torch.einsum("bhp,hpl->bhl", nope.float(), layer.attention.W_UK_T.float()).to(batch.q.dtype), rope


@pytest.mark.parametrize("cache", ["auto", "fp8_ds_mla"])
@pytest.mark.parametrize("queries", [(1, 2, 20), (20, 9, 3)])
@pytest.mark.parametrize("sparse_prefill", [True, False])
def test_sparse_prompts_beside_decode(monkeypatch, cache, queries, sparse_prefill):
    """Prompts go to sparse_prefill(), or to decode where that refuses them."""
    calls, prefill = [], flashlatent.sparse_prefill

    def watched(q, *arguments, **options):
        calls.append(q.shape[0])
        if not sparse_prefill:
            raise flashlatent.UnsupportedError("not here")
        return prefill(q, *arguments, **options)

    monkeypatch.setattr(flashlatent, "sparse_prefill", watched)
    monkeypatch.setattr(_sparse, "_refused", set())
    prompts = sum(s for s in queries if s > 2)
    # A builder that sees prompts pins memory, which takes a driver: this one takes all requests for decode.
    with case.vllm_config(cache_dtype=cache, sparse=True, speculative=19) as config:
        batch, buffer = sparse_case(config, cache, lengths=(40, 131, 300), queries=queries)
        layer = case.Layer(config, backend_class(), indexer_buffer=buffer)
        impl = layer.attention.impl
        impl.need_to_return_lse_for_decode = True
        builder = layer.attention.attn_backend.get_builder_cls()(
            layer.attention.get_kv_cache_spec(config), ["layer"], config, case.DEVICE)
        metadata = builder.build(0, batch.common())
        metadata.num_decode_tokens = batch.rows - prompts
        for _ in range(2):
            out, lse = impl.forward_mqa(absorbed_queries(batch, layer), batch.cache, metadata, None)
        out = torch.einsum("bhl,hlv->bhv", out.float(), layer.attention.W_UV.float())
        compare(batch, layer, out.cpu(), lse.cpu(), buffer.cpu())
    assert calls == [prompts] * (1 if _sparse._refused else 2)
    assert case.DEVICE.type != "cpu" or bool(_sparse._refused) != sparse_prefill


def test_sparse_rows_counted_through_other_layers_pages():
    """vLLM 0.33 hands rows of the whole cache, other layers' pages included."""
    with case.vllm_config(sparse=True) as config:
        batch, buffer = sparse_case(config, "auto", stride_pages=3)
        layer = case.Layer(config, backend_class(), indexer_buffer=buffer)
        impl, size = layer.attention.impl, config.cache_config.block_size
        impl._step = flashlatent.Step()
        impl.need_to_return_lse_for_decode = True
        requests = torch.repeat_interleave(torch.arange(3), torch.tensor(batch.queries)).to(case.DEVICE)
        page = batch.table[requests].gather(1, (buffer[:batch.rows] // size).clamp(0).long())
        rows = torch.where(buffer[:batch.rows] >= 0, page * size * 3 + buffer[:batch.rows] % size, -1).int()
        q = torch.cat(absorbed_queries(batch, layer), -1)
        _, lse = impl._forward_mqa_kernel(q, batch.cache, rows, (rows >= 0).sum(1).int(), layer=None, block_size=size,
                                          is_decode=True)
        assert (lse.cpu() - batch.plain(layer, buffer.cpu())[1]).abs().max() < 4 * TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("queries", [[1, 1], [3, 3], [2, 4]])
@pytest.mark.parametrize("run", [1, 16])
def test_shards_of_the_tokens_merge_by_their_lse(queries, run):
    """Decode context parallelism: ranks have runs of tokens in turns, lse is in vLLM's shape, and drafts see what lies
    before them in the whole context."""
    with case.vllm_config(speculative=3) as config:
        whole = case.Batch(config, [64, 30], queries)
        layer = case.Layer(config, backend_class())
        impl, size = layer.attention.impl, config.cache_config.block_size
        impl.need_to_return_lse_for_decode = True
        expected, expected_lse = whole.plain(layer)
        builder = layer.attention.attn_backend.get_builder_cls()(
            layer.attention.get_kv_cache_spec(config), ["layer"], config, case.DEVICE)
        builder.dcp_world_size, builder.cp_kv_cache_interleave_size = 2, run
        parts = []
        for rank in range(2):
            part = case.Batch(config, [64, 30], queries)
            here = [torch.arange(n)[torch.arange(n) // run % 2 == rank] for n in whole.lengths]
            for i, tokens in enumerate(here):
                t = torch.arange(len(tokens))
                slots = part.table[i].cpu()[t // size].long() * size + t % size
                flashlatent.append_latent(whole.latent[i][tokens].to(case.DEVICE), whole.rope[i][tokens].to(case.DEVICE),
                                          slots.to(case.DEVICE), part.cache.unsqueeze(2))
            common = part.common()
            common.dcp_local_seq_lens = torch.tensor([len(tokens) for tokens in here]).int().to(case.DEVICE)
            impl.dcp_world_size, impl.dcp_rank = 2, rank
            out, lse = impl.forward_mqa(absorbed_queries(whole, layer), part.cache, builder.build(0, common),
                                        layer.attention)
            parts.append((torch.einsum("bhl,hlv->bhv", out.float(), layer.attention.W_UV.float()).cpu(), lse.cpu()))
        merged_lse = torch.logaddexp(parts[0][1], parts[1][1])
        merged = sum(out * (lse - merged_lse).exp()[..., None] for out, lse in parts)
        assert (merged_lse - expected_lse).abs().max() < 4 * TOLERANCE[torch.bfloat16]
        assert (merged - expected).abs().max() < 2 * TOLERANCE[torch.bfloat16]


def test_shards_of_chosen_tokens_merge_by_their_lse():
    """The same of sparse decode: each rank takes those of the chosen tokens that it has."""
    with case.vllm_config(sparse=True, speculative=1) as config:
        whole, buffer = sparse_case(config, "auto")
        layer = case.Layer(config, backend_class(), indexer_buffer=buffer)
        impl, size = layer.attention.impl, config.cache_config.block_size
        impl.need_to_return_lse_for_decode = True
        expected, expected_lse = whole.plain(layer, buffer.cpu())
        builder = layer.attention.attn_backend.get_builder_cls()(
            layer.attention.get_kv_cache_spec(config), ["layer"], config, case.DEVICE)
        queries = absorbed_queries(whole, layer)
        parts = []
        for rank in range(2):
            part, _ = sparse_case(config, "auto")
            for i, n in enumerate(part.lengths):
                latent, roped = part.latent[i][rank::2], part.rope[i][rank::2]
                t = torch.arange(len(latent))
                slots = part.table[i].cpu()[t // size].long() * size + t % size
                flashlatent.append_latent(*(x.contiguous().to(case.DEVICE) for x in (latent, roped, slots)),
                                          part.cache.unsqueeze(2))
            impl.dcp_world_size, impl.dcp_rank = 2, rank
            out, lse = impl.forward_mqa(queries, part.cache, builder.build(0, part.common()), None)
            parts.append((torch.einsum("bhl,hlv->bhv", out.float(), layer.attention.W_UV.float()).cpu(), lse.cpu()))
        merged_lse = torch.logaddexp(parts[0][1], parts[1][1])
        merged = sum(out * (lse - merged_lse).exp()[..., None] for out, lse in parts)
        assert (merged_lse - expected_lse).abs().max() < 4 * TOLERANCE[torch.bfloat16]
        assert (merged - expected).abs().max() < 2 * TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("option, value", [("alibi_slopes", [0.5]), ("sliding_window", 128), ("logits_soft_cap", 30.0),
                                           ("attn_type", "encoder")])
def test_options_that_mla_lacks_are_refused_by_name(option, value):
    with case.vllm_config() as config:
        layer = case.Layer(config, backend_class())
        arguments = dict(
            num_heads=4, head_size=576, scale=1.0, num_kv_heads=1, alibi_slopes=None, sliding_window=None,
            kv_cache_dtype="auto", logits_soft_cap=None, attn_type="decoder", kv_sharing_target_layer_name=None,
            q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, qk_head_dim=192,
            v_head_dim=128, kv_b_proj=layer.attention.kv_b_proj)
        with pytest.raises(NotImplementedError, match=f"{option} is"):
            type(layer.attention.impl)(**{**arguments, option: value})


def test_plans_know_how_many_layers_read_them():
    with case.vllm_config() as config:
        layer = case.Layer(config, backend_class())
        cls = layer.attention.attn_backend.get_builder_cls()
        builder = cls(layer.attention.get_kv_cache_spec(config), ["layer"] * 3, config, case.DEVICE)
        common = case.Batch(config, [40, 50], [1, 1]).common()
        assert builder.build(0, common).decode.step.calls_per_plan == 3
        assert builder.build(0, common, fast_build=True).decode.step.calls_per_plan == 1  # a draft's
        assert builder.build(0, common).decode.step.calls_per_plan == 3


# A step knows its longest request. A graph is captured for all lengths to come, so that a setting decides.
@pytest.mark.parametrize("setting, in_graphs", [({}, 8192), ({"flashlatent_typical_tokens": 500}, 500),
                                                ({"flashlatent_typical_tokens": 0}, 0)])
def test_kernels_are_chosen_for_the_lengths_of_a_step(setting, in_graphs):
    with case.vllm_config() as config:
        config.additional_config = setting
        layer = case.Layer(config, backend_class())
        cls = layer.attention.attn_backend.get_builder_cls()
        builder = cls(layer.attention.get_kv_cache_spec(config), ["layer"], config, case.DEVICE)
        for longest, typical in ((40, 64), (64, 64), (65, 128), (1, 1)):
            assert builder.build(0, case.Batch(config, [longest, 1], [1, 1]).common()).decode.typical_tokens == typical
        common = case.Batch(config, [40, 50], [1, 1]).common()
        assert builder.build_for_cudagraph_capture(common).decode.typical_tokens == in_graphs
        assert builder.build(0, common).decode.typical_tokens == 64


@pytest.mark.parametrize("value", [-1, 1.5, True, "4096"])
def test_an_unusable_setting_of_typical_tokens_is_refused(value):
    with case.vllm_config() as config:
        config.additional_config = {"flashlatent_typical_tokens": value}
        layer = case.Layer(config, backend_class())
        cls = layer.attention.attn_backend.get_builder_cls()
        with pytest.raises(ValueError, match=f"flashlatent_typical_tokens in additional_config is {value!r}; 0"):
            cls(layer.attention.get_kv_cache_spec(config), ["layer"], config, case.DEVICE)


def test_builders_take_ragged_batches_and_uniform_graphs():
    with case.vllm_config(speculative=3) as config:
        layer = case.Layer(config, backend_class())
        cls = layer.attention.attn_backend.get_builder_cls()
        builder = cls(layer.attention.get_kv_cache_spec(config), ["layer"], config, case.DEVICE)
        assert builder.query_len_support.name == "VARLEN" and builder.reorder_batch_threshold == 4
        assert cls.get_cudagraph_support(config, None).name == "UNIFORM_BATCH"
        ragged = builder.build(0, case.Batch(config, [40, 50], [1, 3]).common()).decode
        assert not ragged.queries.uniform and ragged.queries.tokens == 3
        uniform = builder.build_for_cudagraph_capture(case.Batch(config, [40, 50], [4, 4]).common()).decode
        assert uniform.queries.uniform and uniform.step is not ragged.step
        padded = builder.build(0, case.Batch(config, [40, 50], [2, 1], padding=0).common()).decode
        assert not padded.queries.uniform


@pytest.mark.skipif(case.DEVICE.type == "cpu", reason="vLLM's own backends need a GPU")
@pytest.mark.parametrize("name", ["TRITON_MLA", "FLASHMLA", "FLASH_ATTN_MLA"])
def test_error_beside_that_of_vllms_backends(name):
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    errors = []
    for backend in (None, AttentionBackendEnum[name].get_class()):
        with case.vllm_config(block_size=64) as config:
            batch = case.Batch(config, [1000, 64, 5, 2000], [1] * 4)
            layer, out, _ = decode(config, batch, layer=case.Layer(config, backend or backend_class()), with_lse=False)
            errors.append((out.float() - batch.plain(layer)[0]).square().mean().sqrt().item())
    assert errors[0] <= 1.5 * errors[1]
