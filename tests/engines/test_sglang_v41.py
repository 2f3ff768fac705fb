"""DeepSeek V4.1's records of 528 and 288 bytes in an unpacked SGLang 0.5.23, without a GPU: SGLang's own code, of its
choice of layouts, its pools and its attention backend, with what flashlatent.sglang puts into it. Bytes beside SGLang's
reference of them, outputs beside float32. FLASHLATENT_SGLANG names the folder to import sglang from.

SGLang's modules load GPU code, so that functions and methods are taken from their sources.
"""

import contextlib
import enum
import importlib
import os
import sys
import typing
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
TREE = os.environ.get("FLASHLATENT_SGLANG")
if not TREE or not os.path.isfile(os.path.join(TREE, "sglang/kernels/ops/attention/dsv4/kv_layout.py")):
    pytest.skip("FLASHLATENT_SGLANG is no SGLang with DeepSeek V4.1; scripts/check engines sets it to one",
                allow_module_level=True)

sys.path.insert(0, os.path.dirname(__file__))

import flashlatent  # noqa: E402
from flashlatent import _gpu, _sparse  # noqa: E402
from flashlatent.sglang import _v41_choice  # noqa: E402
from sglang_source import empty_packages, load, never, taken  # noqa: E402

HEADS, PADDED, DIM, WINDOW, SCALE, PAGE = 6, 64, 512, 128, 512**-0.5, 256
LENGTHS = [300, 40, 700]
POOL, CONFIGURATOR, BACKEND = _v41_choice._POOL, _v41_choice._CONFIGURATOR, _v41_choice._BACKEND
OPTIONS = [("v41", "auto"), ("v41", "fp8"), ("v41_new", "auto"), ("v41_new", "fp8")]


class KVCache:
    """In place of SGLang's base of pools."""

    def __init__(self, size, page_size, dtype, layer_num, device, enable_memory_saver, start_layer, end_layer):
        self.size, self.page_size, self.dtype, self.store_dtype = size, page_size, dtype, torch.uint8
        self.layer_num, self.device, self.start_layer, self.custom_mem_pool = layer_num, device, 0, None
        self.memory_saver_adapter = SimpleNamespace(region=lambda *_: contextlib.nullcontext())


class Mode(enum.Enum):
    EXTEND = 1
    DECODE = 2

    def is_extend_without_speculative(self):
        return self is Mode.EXTEND

    def is_idle(self):
        return False


@pytest.fixture
def sglang(monkeypatch):
    """SGLang's modules after the plugin: pool, configurator, backend, and settings to change."""
    for name in [n for n in sys.modules if n == "sglang" or n.startswith("sglang.")]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    empty_packages("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.layers", "sglang.srt.layers.attention",
                   "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention",
                   "sglang.kernels.ops.attention.dsv4", "sglang.kernels.ops.quantization", "sglang.test",
                   "sglang.test.kernels", "sglang.test.kernels.deepseek_v4")
    layouts = importlib.import_module("sglang.kernels.ops.attention.dsv4.kv_layout")
    rounding = importlib.import_module("sglang.kernels.ops.quantization.fp4_fake_quant")
    settings = {"SGLANG_DSV4_KV_LAYOUT": "v41", "SGLANG_DSV4_COMPRESSED_KV_LAYOUT": "auto"}
    kernel = SimpleNamespace(dsv4_attn_backend="flashmla", dsv4_prefill_backend="auto")
    envs = SimpleNamespace(**{name: SimpleNamespace(get=lambda name=name: settings[name]) for name in settings},
                           SGLANG_OPT_FLASHMLA_SPARSE_PREFILL=SimpleNamespace(get=lambda: True))
    common = dict(torch=torch, envs=envs, get_exec=lambda: SimpleNamespace(kernel=kernel), KVLayout=layouts.KVLayout,
                  ceil_div=lambda a, b: -(-a // b), nullcontext=contextlib.nullcontext, _is_hip=False, _is_xpu=False,
                  get_platform=lambda: SimpleNamespace(is_sm100=False, is_sm120=False, is_blackwell=False))
    common.update({name: getattr(typing, name) for name in ("Optional", "Literal", "Tuple", "Union")})

    flashlatent.sglang._v41_choice.offer_records()  # as register() does, before SGLang imports the modules
    store = taken("kernels/ops/attention/dsv4/attn.py", ["fused_store_cache"])
    kernels = dict(common)
    exec(store, kernels)  # noqa: S102
    assert "fused_store_cache" in kernels
    pool = load(
        POOL, taken("srt/mem_cache/deepseek_v4_memory_pool.py",
                    ["_num_dsv4_physical_kv_pages", "resolve_compressed_kv_layout", "select_dsv4_kv_layout",
                     "DeepSeekV4SingleKVPool", "DeepSeekV4TokenToKVPool"],
                    {"DeepSeekV4TokenToKVPool": [
                        "compressed_kv_layout", "get_extra_key_page_size", "get_extra_key_layout",
                        "get_extra_key_bytes_per_token", "get_swa_key_layout", "get_swa_key_page_size",
                        "get_swa_key_bytes_per_token", "get_extra_key_buffer", "get_swa_raw_buffer",
                        "get_swa_key_buffer_radix", "set_swa_key_buffer_radix_fused", "set_extra_key_buffer_fused",
                        "_swa_local_layer_id"]}),
        KVCache=KVCache, GPU_MEMORY_TYPE_KV_CACHE="kv", is_valid_kv_layout_pair=layouts.is_valid_kv_layout_pair,
        fused_store_cache=kernels["fused_store_cache"], **common)
    tail = dict(common)
    exec(taken("srt/layers/attention/dsv4/dsv41_sparse.py", ["rope_tail"]), tail)  # noqa: S102
    backend = load(
        BACKEND, taken("srt/layers/attention/deepseek_v4_backend.py",
                       ["_create_flashmla_metadata", "_fast_flashmla_sched_shape", "_maybe_precompute_flashmla_sched_meta",
                        "_flashmla_v41_splits_kv", "_pad_tensor_to_size", "DeepseekV4AttnBackend"],
                       {"DeepseekV4AttnBackend": ["_forward_attention", "_use_sparse_prefill", "store_cache",
                                                  "_low_ratio_write_group"]}),
        DSV4AttnMetadata=SimpleNamespace, DeepSeekV4TokenToKVPool=pool.DeepSeekV4TokenToKVPool, F=torch.nn.functional,
        use_dsv4_q8kv8_sparse_prefill=lambda backend: backend == "flashmla_sparse_q8", is_cp_active=lambda _: False,
        _LARGE_INDEXER_QUERY_THRESHOLD=11673, can_use_swapab_attention=never,
        _rope_fq4=lambda x, freqs, columns, compressed_kv: rounding.fake_quant_compressed_kv(
            tail["rope_tail"](x, freqs, columns)), **common)
    # What an import does: the finders are for modules that importlib loads.
    _v41_choice._change(pool)
    configurator = load(CONFIGURATOR, "", select_dsv4_kv_layout=None)
    _v41_choice._take(configurator)
    monkeypatch.setattr(_gpu, "on_hopper", lambda: True)
    monkeypatch.setattr(_gpu, "cuda_reason", lambda: "")
    monkeypatch.setattr(_sparse, "_refused", set())
    yield SimpleNamespace(pool=pool, configurator=configurator, backend=backend, settings=settings, kernel=kernel,
                          layouts=layouts, rope_tail=tail["rope_tail"],
                          reference=importlib.import_module("sglang.test.kernels.deepseek_v4.dsv41_kv_quant_reference"))
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_Finder"]
    for name in set(sys.modules) - before:
        if name.startswith("sglang"):
            del sys.modules[name]


def pool_of(sglang, ratio):
    """DeepSeekV4TokenToKVPool of one layer, by SGLang's choice of layouts."""
    layout, option = sglang.configurator.select_dsv4_kv_layout()
    made = sglang.pool.DeepSeekV4TokenToKVPool.__new__(sglang.pool.DeepSeekV4TokenToKVPool)
    made.kv_layout, made.compressed_kv_layout_option, made.uniform_fp8, made.request_window = layout, option, False, None
    made._stage_start, made.swa_page_size, made.wait_layer_transfer = 0, PAGE, lambda layer_id: None

    def single(page_size, layout):
        return sglang.pool.DeepSeekV4SingleKVPool(8 * page_size, page_size, torch.float8_e4m3fn, 448, 64, 1, "cpu", False,
                                                  kv_layout=layout, global_page_size=page_size)

    made.swa_kv_pool = single(PAGE, layout)
    if ratio:
        made.layer_mapping = {0: (ratio, 0, single(PAGE // ratio, made.compressed_kv_layout(ratio)))}
    return made


def tokens(rows, generator):
    """bf16 tokens with groups of small values, among them groups whose scales both rules of writers differ in."""
    x = torch.randn(rows, DIM, generator=generator)
    sizes = 2.0**torch.randint(-20, 5, (rows, DIM // 32), generator=generator)
    sizes[::3] = 1
    x *= sizes.repeat_interleave(32, 1)
    x[1, :64] = 0
    return x.bfloat16()


def angles(positions, generator):
    turns = torch.rand(positions, 32, generator=generator) * 6.2832
    return torch.polar(torch.ones_like(turns), turns)


def pages_of(buffer, page_size, layout, reference):
    """The bytes of a pool's pages as the reference of layouts has them, scales behind a page's data."""
    buffer = buffer.view(torch.uint8)
    if layout.is_interleaved:
        return reference.deinterleave_pages(buffer, page_size, layout.data_bytes, layout.scale_bytes)
    return buffer[:, :page_size * layout.bytes_per_token]


def quantised(x, page_size, layout, reference):
    """float rows (pages · page_size, 512) by SGLang's reference: (bytes of pages, what readers see)."""
    rows = x.view(-1, page_size, DIM)
    quantise, read = ((reference.quantize_k_cache_v41_fp4, reference.dequantize_k_cache_v41_fp4) if layout.is_fp4 else
                      (reference.quantize_k_cache_v41, reference.dequantize_k_cache_v41))
    pages = quantise(rows)
    return pages[:, :page_size * layout.bytes_per_token], read(pages, page_size).view(-1, DIM).float()


@pytest.mark.parametrize("setting, option", OPTIONS)
@pytest.mark.parametrize("ratio", [1, 2])
def test_bytes_are_those_of_sglangs_reference(sglang, setting, option, ratio):
    sglang.settings.update(SGLANG_DSV4_KV_LAYOUT=setting, SGLANG_DSV4_COMPRESSED_KV_LAYOUT=option)
    generator = torch.Generator().manual_seed(3)
    pool = pool_of(sglang, ratio)
    record = pool.get_extra_key_bytes_per_token(0)
    assert (pool.get_swa_key_bytes_per_token(), record) == (528, 288 if option == "auto" else 528)
    backend = sglang.backend.DeepseekV4AttnBackend()
    backend.token_to_kv_pool, backend.get_swa_out_cache_loc = pool, lambda batch: batch

    window, slots = tokens(2 * PAGE, generator), torch.randperm(2 * PAGE, generator=generator)
    backend.store_cache(0, window, slots.int())
    expected, _ = quantised(window[slots.argsort()], PAGE, pool.kv_layout, sglang.reference)
    assert torch.equal(pages_of(pool.swa_kv_pool.kv_buffer[0], PAGE, pool.kv_layout, sglang.reference)[:2], expected)

    size, layout = PAGE // ratio, pool.get_extra_key_layout(0)
    latent, slots = tokens(2 * size, generator), torch.randperm(2 * size, generator=generator)
    layer = SimpleNamespace(layer_id=0, compressor=SimpleNamespace(finish=lambda x: x), indexer=None, rope_head_dim=64,
                            freqs_cis=angles(1000, generator))
    at = torch.randint(0, 1000, (2 * size,), generator=generator)
    backend._low_ratio_write_group(layer, latent, slots, at)
    rotated = sglang.rope_tail(latent, layer.freqs_cis[at], 64)
    if not layout.is_fp4:
        rotated = sglang.backend._rope_fq4(latent, layer.freqs_cis[at], 64, compressed_kv=True)
    expected, _ = quantised(rotated[slots.argsort()], size, layout, sglang.reference)
    found = pages_of(pool.get_extra_key_buffer(0), size, layout, sglang.reference)[:2]
    different = (found != expected).float().mean().item()
    # The reference's complex product may fuse products with sums: another bf16 now and then.
    assert different < 1e-4, different


def in_slots(numbers, slots, width):
    """Slots of a request's tokens, int32 (width), -1 behind them."""
    return torch.cat([slots[numbers], torch.full((width - len(numbers),), -1)]).int()


def attention_case(sglang, ratio, mode):
    """(backend, layer, batch, q padded, attn_sink padded, what float32 says)"""
    generator = torch.Generator().manual_seed(7)
    pool = pool_of(sglang, ratio)
    new = [9, 3, 20] if mode is Mode.EXTEND else [1, 1, 1]
    slots = iter(torch.randperm(7 * PAGE, generator=generator)[:sum(LENGTHS)].split(LENGTHS))
    raw = torch.randn(7 * PAGE, DIM, generator=generator).bfloat16()
    everywhere = torch.arange(7 * PAGE)
    pool.set_swa_key_buffer_radix_fused(0, everywhere.int(), raw)
    _, seen = quantised(raw, PAGE, pool.kv_layout, sglang.reference)
    if ratio:
        size, layout = PAGE // ratio, pool.get_extra_key_layout(0)
        compressed = torch.randn(7 * size, DIM, generator=generator).bfloat16()
        pool.set_extra_key_buffer_fused(0, torch.arange(7 * size), compressed)
        _, seen_compressed = quantised(compressed, size, layout, sglang.reference)
    sink = torch.zeros(PADDED)
    sink[:HEADS] = torch.linspace(-1, 2, HEADS)
    rows = sum(new) + 2  # of them two are padding
    q = torch.randn(rows, PADDED, DIM, generator=generator).bfloat16()
    window, counts, extra, extra_counts, expected = [], [], [], [], []
    for length, count in zip(LENGTHS, new):
        mine = next(slots)
        groups = torch.randperm(7 * PAGE // max(ratio, 1), generator=generator)[:length // max(ratio, 1)]
        for at in range(length - count, length):
            here = torch.arange(max(0, at + 1 - WINDOW), at + 1)
            window.append(in_slots(here, mine, WINDOW))
            counts.append(len(here))
            keys = seen[mine[here]]
            if ratio:
                some = torch.randperm((at + 1) // ratio, generator=generator)[:60]
                extra.append(in_slots(some, groups, 64))
                extra_counts.append(len(some))
                keys = torch.cat([keys, seen_compressed[groups[some]]])
            scores = torch.cat([q[len(expected), :HEADS].float() @ keys.T * SCALE, sink[:HEADS, None]], 1)
            expected.append(scores.softmax(1)[:, :-1] @ keys)
    backend = sglang.backend.DeepseekV4AttnBackend()
    backend.token_to_kv_pool, backend.mtp_enabled, backend.trtllm_attn, backend.is_dsv41 = pool, False, False, True
    backend.softmax_scale, backend.head_dim_v, backend.dsv4_prefill_backend = SCALE, DIM, "auto"
    backend._swa_interleaved, backend._flashmla_split_kv_min_topk = pool.kv_layout.is_interleaved, 641
    backend._flash_mla_with_kvcache = backend._forward_prefill_sparse = never
    plans = {ratio: sglang.backend._create_flashmla_metadata()}
    core = SimpleNamespace(swa_page_indices=torch.stack(window), swa_topk_lengths=torch.tensor(counts).int(),
                           get_flashmla_metadata=plans.__getitem__)
    if ratio:
        core.sparse_page_indices = {ratio: torch.stack(extra)}.__getitem__
        core.sparse_topk_lengths = {ratio: torch.tensor(extra_counts).int()}.__getitem__
    backend.forward_metadata = SimpleNamespace(core_attn_metadata=core, late_layer_tail=None)
    layer = SimpleNamespace(layer_id=0, tp_q_head_num=HEADS, v_head_dim=DIM)
    return backend, layer, SimpleNamespace(forward_mode=mode), q, sink, torch.stack(expected)


@pytest.mark.parametrize("setting, option", OPTIONS)
@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("sparse_prefill", [True, False])
def test_attention_is_that_of_float32(sglang, monkeypatch, setting, option, ratio, mode, sparse_prefill):
    sglang.settings.update(SGLANG_DSV4_KV_LAYOUT=setting, SGLANG_DSV4_COMPRESSED_KV_LAYOUT=option)
    backend, layer, batch, q, sink, expected = attention_case(sglang, ratio, mode)
    prompts, sparse = [], flashlatent.sparse_prefill

    def refuse(*arguments, **options):
        prompts.append(options)
        if not sparse_prefill:
            raise flashlatent.UnsupportedError("not here")
        return sparse(*arguments, **options)

    monkeypatch.setattr(flashlatent, "sparse_prefill", refuse)
    for _ in range(2):  # as two layers of a step
        out = backend._forward_attention(q, q, q, layer, batch, compress_ratio=ratio, save_kv_cache=False,
                                         attn_sink=sink)
        assert out.shape == q.shape
        error = (out[:len(expected), :HEADS].float() - expected).abs().max()
        assert error < 2e-2, error
    assert bool(prompts) == (mode is Mode.EXTEND)


def test_layouts_and_their_bytes(sglang):
    values = sglang.layouts.KVLayout
    theirs = sglang.pool.select_dsv4_kv_layout.__wrapped__
    for setting, layout in (("v41", values.V41), ("V41_NEW", values.V41_NEW)):
        sglang.settings["SGLANG_DSV4_KV_LAYOUT"] = setting
        assert sglang.configurator.select_dsv4_kv_layout() == (layout, "auto")
        with pytest.raises(AssertionError, match="need an SM100"):
            theirs()
    for setting in ("v4", "auto"):  # SGLang's own choice
        sglang.settings["SGLANG_DSV4_KV_LAYOUT"] = setting
        assert sglang.configurator.select_dsv4_kv_layout() == theirs() == (values.V4, None)
    sglang.settings["SGLANG_DSV4_KV_LAYOUT"] = "v5"
    with pytest.raises(AssertionError, match="unknown SGLANG_DSV4_KV_LAYOUT='v5'"):
        sglang.configurator.select_dsv4_kv_layout()


def test_nothing_changes_until_such_a_cache_is_made(sglang, monkeypatch):
    before = sglang.pool.fused_store_cache, sglang.backend._create_flashmla_metadata
    sglang.settings["SGLANG_DSV4_KV_LAYOUT"] = "v4"
    sglang.pool.select_dsv4_kv_layout()
    sglang.settings["SGLANG_DSV4_KV_LAYOUT"] = "v41"
    for change in ((_gpu, "on_hopper", lambda: False), (sglang.kernel, "dsv4_attn_backend", "flashmla_mega")):
        with monkeypatch.context() as context:
            context.setattr(*change)
            with pytest.raises(AssertionError, match="need an SM100"):
                sglang.pool.select_dsv4_kv_layout()
    assert before == (sglang.pool.fused_store_cache, sglang.backend._create_flashmla_metadata)


def test_other_caches_are_written_by_sglang(sglang):
    calls = []
    sglang.pool.fused_store_cache = lambda *arguments, **options: calls.append((arguments, options))
    from flashlatent.sglang import _v41_attention
    _v41_attention.take_over(sglang.pool, sglang.backend)
    sglang.pool.fused_store_cache("rows", "cache", "slots", page_size=64, type="indexer")
    sglang.pool.fused_store_cache("rows", "cache", "slots", page_size=64, type="flashmla",
                                  layout=sglang.layouts.KVLayout.V4)
    assert [options["type"] for _, options in calls] == ["indexer", "flashmla"]


@pytest.mark.parametrize("change, sentence", [
    (lambda s: setattr(s.kernel, "dsv4_prefill_backend", "flashmla_sparse_q8"),
     "SGLANG_DSV4_KV_LAYOUT is v41 on a GPU of compute capability 9, and --dsv4-prefill-backend is flashmla_sparse_q8"),
    (lambda s: delattr(s.backend.DeepseekV4AttnBackend, "_use_sparse_prefill"),
     "_use_sparse_prefill is missing; SGLang 0.5.23 is known, and v4 is expected"),
    (lambda s: setattr(s.pool, "fused_store_cache", lambda rows, cache: None), r"fused_store_cache takes \(rows, cache\)"),
    (lambda s: setattr(s.pool, "KVLayout", enum.Enum("KVLayout", {"V4": "v4", "V41": "v41"})), "KVLayout lacks one of"),
])
def test_refusals_are_one_sentence(sglang, change, sentence):
    change(sglang)
    with pytest.raises(ValueError, match=sentence):
        sglang.configurator.select_dsv4_kv_layout()


def test_a_package_without_cuda_is_refused(sglang, monkeypatch):
    monkeypatch.setattr(_gpu, "cuda_reason", lambda: "backend cuda is not in this build")
    with pytest.raises(ValueError, match="flashlatent cannot use the GPU: backend cuda is not in this build; v4 is"):
        sglang.configurator.select_dsv4_kv_layout()
