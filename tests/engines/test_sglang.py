"""flashlatent.sglang against an unpacked SGLang, without a GPU: what it asks of SGLang is there, and its backend on CPU
tensors computes what a plain float32 layer does. FLASHLATENT_SGLANG names the folder to import sglang from.

The packages' __init__ files are left out: they load GPU code and pin another transformers. Their modules are real.
"""

import ast
import enum
import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
TREE = os.environ.get("FLASHLATENT_SGLANG")
if not TREE:
    pytest.skip("FLASHLATENT_SGLANG is not set; scripts/check engines sets it", allow_module_level=True)

import flashlatent  # noqa: E402
import flashlatent.sglang  # noqa: E402

HEADS, PAGE, SCALE = 4, 16, 192**-0.5
NEW = os.path.exists(os.path.join(TREE, "sglang", "kernels", "kernel_api_logging.py"))  # 0.5.23, not 0.5.17


def source(path):
    with open(os.path.join(TREE, "sglang", "srt", path), encoding="utf-8") as file:
        return file.read()


def node_of(text, name):
    """The definition of a class or function, or of a class's method."""
    nodes = ast.parse(text).body
    for part in name.split("."):
        node = next(n for n in nodes if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == part)
        nodes = node.body
    return node


def arguments(path, name):
    return [a.arg for a in node_of(source(path), name).args.args]


class Context:
    """SGLang 0.5.23's settings, which its ServerArgs lacks."""

    def __init__(self):
        self.spec, self.parallel, self.deterministic = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()

    def functions(self):
        return dict(get_spec=lambda: self.spec, get_parallel=lambda: self.parallel,
                    get_exec=lambda: SimpleNamespace(deterministic=self.deterministic))


CONTEXT = Context()


@pytest.fixture(scope="module")
def sglang():
    """SGLang's registry and base class, with what they import from GPU code replaced."""
    for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.attention", "sglang.srt.configs",
                 "sglang.srt.utils", "sglang.srt.arg_groups", "sglang.srt.model_executor", "sglang.kernels"):
        package = ModuleType(name)
        package.__path__ = [os.path.join(TREE, *name.split("."))]
        sys.modules[name] = package
    sys.modules["sglang.srt.utils"].__dict__.update(
        get_device_capability=lambda: (9, 0), is_hip=lambda: False, is_musa=lambda: False, is_npu=lambda: False)
    stubs = {
        "sglang.kernel_api_logging": dict(debug_kernel_api=lambda function: function),
        "sglang.kernels.kernel_api_logging": dict(debug_kernel_api=lambda function: function),
        "sglang.srt.utils.common": dict(is_npu=lambda: False),
        "sglang.srt.runtime_context": dict(get_context=None, get_platform=None, **CONTEXT.functions()),
        "sglang.srt.arg_groups.overrides": dict.fromkeys(["attention_backends_of", "resolved_view"]),
        "sglang.srt.environ": dict(envs=None),
        "sglang.srt.model_executor.forward_batch_info": dict(ForwardMode=type(mode("DECODE"))),
        "sglang.srt.configs.hybrid_arch": dict.fromkeys(
            ["glm5_next_config", "hybrid_gdn_config", "hybrid_kda_config", "hybrid_lightning_config",
             "kimi_linear_config", "mamba2_config", "mambaish_config"]),
        "sglang.srt.configs.linear_attn_model_registry": dict.fromkeys(["get_linear_attn_config",
                                                                        "import_backend_class"]),
    }
    text = source("arg_groups/choices.py" if NEW else "server_args.py")
    arguments_module = {}
    for name in ("ATTENTION_BACKEND_CHOICES", "add_attention_backend_choices"):
        node = next(n for n in ast.parse(text).body if name in (
            getattr(n, "name", None), *(getattr(target, "id", None) for target in getattr(n, "targets", ()))))
        exec(ast.get_source_segment(text, node), arguments_module)  # noqa: S102
    arguments_module["ServerArgs"] = type("ServerArgs", (), {} if NEW else dict(get_attention_backends=None))
    stubs["sglang.srt.server_args"] = arguments_module
    for name, members in stubs.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module
    flashlatent.sglang.register()
    return SimpleNamespace(
        registry=importlib.import_module("sglang.srt.layers.attention.attention_registry"),
        base=importlib.import_module("sglang.srt.layers.attention.base_attn_backend"),
        choices=arguments_module["ATTENTION_BACKEND_CHOICES"])


def mode(name):
    """A member of SGLang's ForwardMode."""
    space = dict(IntEnum=enum.IntEnum, auto=enum.auto)
    text = source("model_executor/forward_batch_info.py")
    exec("from __future__ import annotations\n" + ast.get_source_segment(text, node_of(text, "ForwardMode")), space)
    return getattr(space["ForwardMode"], name)


def test_is_registered_and_may_be_chosen(sglang):
    assert "flashlatent" in sglang.registry.ATTENTION_BACKENDS
    assert sglang.choices.count("flashlatent") == 1


def test_another_sglang_is_left_alone_with_one_warning(sglang, monkeypatch, caplog):
    monkeypatch.setattr(flashlatent.sglang, "_done", False)
    monkeypatch.setattr(sys.modules["sglang.srt.server_args"], "ServerArgs", object)
    monkeypatch.delattr(sys.modules["sglang.srt.runtime_context"], "get_spec")
    monkeypatch.setitem(sglang.registry.ATTENTION_BACKENDS, "flashlatent", None)
    del sglang.registry.ATTENTION_BACKENDS["flashlatent"]
    for _ in range(2):
        flashlatent.sglang.register()
    assert "flashlatent" not in sglang.registry.ATTENTION_BACKENDS
    (record,) = caplog.records
    assert ("ServerArgs has no get_attention_backends, and in runtime_context get_spec is missing; SGLang 0.5.17 and "
            "0.5.23 are known") in record.message


def test_what_is_asked_of_sglang_is_there():
    base = "layers/attention/base_attn_backend.py"
    for name in ("forward_decode", "forward_extend"):
        assert arguments(base, f"AttentionBackend.{name}") == [
            "self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"]
    assert arguments(base, "AttentionBackend.init_forward_metadata_in_graph") == ["self", "forward_batch"]
    assert arguments(base, "AttentionBackend.init_cuda_graph_state") == ["self", "max_bs", "max_num_tokens"]
    pool = "mem_cache/memory_pool.py"
    assert arguments(pool, "MLATokenToKVPool.get_key_buffer") == ["self", "layer_id"]
    assert len(arguments(pool, "MLATokenToKVPool.set_kv_buffer")[:5]) == 5
    assert arguments(pool, "MLATokenToKVPool.set_mla_kv_buffer")[3:5] == ["cache_k_nope", "cache_k_rope"]
    if NEW:  # a tensor of slots is taken as it is
        loc = ast.unparse(node_of(source(pool), "unwrap_write_loc"))
        assert "isinstance(loc_info, KVWriteLoc)" in loc and "return (loc_info, None, None)" in loc
    fields = {n.target.id for n in node_of(source("model_executor/forward_batch_info.py"), "ForwardBatch").body
              if isinstance(n, ast.AnnAssign)}
    assert {"forward_mode", "batch_size", "req_pool_indices", "seq_lens", "out_cache_loc"} <= fields
    layer = ast.unparse(node_of(source("layers/radix_attention.py"), "RadixAttention.__init__"))
    for attribute in ("tp_q_head_num", "head_dim", "v_head_dim", "scaling", "layer_id"):
        assert f"self.{attribute} = " in layer
    runner = source("layers/attention/flashmla_backend.py") + source("layers/attention/hybrid_attn_backend.py")
    for name in ("model_runner.req_to_token_pool", "model_runner.token_to_kv_pool", "model_runner.kv_cache_dtype"):
        assert name in runner
    assert "load_plugins()" in source("managers/scheduler.py")
    if not NEW:
        assert arguments("server_args.py", "ServerArgs.get_attention_backends") == ["self"]
        return
    for name in ("get_exec", "get_parallel", "get_spec"):
        assert arguments("runtime_context.py", name) == []
    for field in ("speculative_num_draft_tokens", "speculative_eagle_topk"):
        assert f"    {field}: A[" in source("arg_groups/fields/spec.py")
    assert "    dcp_size: A[" in source("arg_groups/fields/parallel.py")
    kernels = source("arg_groups/fields/exec_.py")
    assert "    enable_deterministic_inference: A[" in kernels[kernels.index('_NS_PATH = "exec.deterministic"'):]
    made = ast.unparse(node_of(source("model_executor/model_runner.py"), "ModelRunner.init_attention_backends"))
    assert made.index("self.prefill_attention_backend_str = ") < made.index("build_attention_backends(")
    assert "def reads_are_translated" in source("mem_cache/kv_index_translator.py")


class Pool:
    """In place of MLATokenToKVPool, whose writes are GPU code."""

    def __init__(self, slots, dtype):
        self.buffer = torch.full((slots + PAGE, 1, 576), float("nan"), dtype=dtype)
        self.buffer[:PAGE] = 0

    def get_key_buffer(self, layer_id):
        return self.buffer

    def set_kv_buffer(self, layer, loc, k, v):
        self.buffer[loc] = k.view(-1, 1, 576)

    def set_mla_kv_buffer(self, layer, loc, cache_k_nope, cache_k_rope):
        self.buffer[loc, :, :512] = cache_k_nope
        self.buffer[loc, :, 512:] = cache_k_rope


def runner(dtype=torch.bfloat16, drafts=None, **more):
    """SGLang's ModelRunner, as far as the backend reads it."""
    prefill = more.get("prefill_attention_backend", "fa3")
    settings = dict(speculative_num_draft_tokens=drafts, speculative_eagle_topk=more.get("speculative_eagle_topk"),
                    dcp_size=more.get("dcp_size", 1), enable_deterministic_inference=more.get("deterministic", False))
    if NEW:
        for part in (CONTEXT.spec, CONTEXT.parallel, CONTEXT.deterministic):
            part.__dict__.update(settings)
        arguments = SimpleNamespace()
    else:
        arguments = SimpleNamespace(get_attention_backends=lambda: (prefill, "flashlatent"), **settings)
    return SimpleNamespace(
        use_mla_backend=more.get("use_mla_backend", True), page_size=PAGE,
        kv_cache_dtype=more.get("kv_cache_dtype", dtype), prefill_attention_backend_str=prefill,
        model_config=SimpleNamespace(hf_config=SimpleNamespace(index_topk=more.get("index_topk")),
                                     hf_text_config=SimpleNamespace(index_topk=more.get("index_topk_of_text"))),
        kv_index_translator=SimpleNamespace(reads_are_translated=more.get("unified_memory", False)),
        server_args=arguments, token_to_kv_pool=Pool(64 * PAGE, dtype),
        req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros(8, 12 * PAGE, dtype=torch.int32)))


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("in_parts, sinks", [(False, False), (True, False), (True, True)])
def test_decode_and_verification_match_a_plain_layer(sglang, dtype, bound, tokens, in_parts, sinks):
    generator = torch.Generator().manual_seed(1)
    model = runner(dtype, tokens if tokens > 1 else None)
    backend = sglang.registry.ATTENTION_BACKENDS["flashlatent"](model)
    assert isinstance(backend, sglang.base.AttentionBackend)
    lengths, requests, table = [40, 5, 131], [6, 0, 3], model.req_to_token_pool.req_to_token
    pages = iter((1 + torch.randperm(60, generator=generator)).tolist())
    rows = []
    for length, request in zip(lengths, requests):
        slots = torch.cat([torch.arange(PAGE) + next(pages) * PAGE for _ in range(-(-length // PAGE))])[:length]
        table[request, :length] = slots.int()
        rows.append(torch.randn(length, 576, generator=generator).to(dtype))
        model.token_to_kv_pool.buffer[slots[:length - tokens], 0] = rows[-1][:length - tokens]
    new = [table[r, n - tokens:n].long() for r, n in zip(requests, lengths)]
    k = torch.cat([x[-tokens:] for x in rows])
    q = torch.randn(3 * tokens, HEADS * 576, generator=generator).to(dtype)
    verifies = tokens > 1
    batch = SimpleNamespace(
        forward_mode=mode("TARGET_VERIFY" if verifies else "DECODE"), batch_size=3, out_cache_loc=torch.cat(new),
        req_pool_indices=torch.tensor(requests), seq_lens=torch.tensor(lengths) - (tokens if verifies else 0))
    layer = SimpleNamespace(layer_id=0, tp_q_head_num=HEADS, head_dim=576, v_head_dim=512, scaling=SCALE)
    backend.init_cuda_graph_state(8, 8)
    backend.init_forward_metadata(batch)
    if in_parts:  # as DeepSeek's layer hands them over: queries head by head
        parts, k = q.view(-1, HEADS, 576), k.unsqueeze(1)
        latent = parts[..., :512].transpose(0, 1).contiguous().transpose(0, 1)
        sink = torch.linspace(-1, 4, HEADS)
        more = dict(attn_sink=sink.to(dtype)) if sinks else {}
        out = backend.forward(latent, k[..., :512], k[..., :512], layer, batch, q_rope=parts[..., 512:],
                              k_rope=k[..., 512:], **more)
    else:
        out = backend.forward(q, k, k[:, :512], layer, batch)
    out = out.view(3, tokens, HEADS, 512)
    for i, n in enumerate(lengths):
        scores = torch.einsum("thd,nd->htn", q.view(3, tokens, HEADS, 576)[i].float(), rows[i].float()) * SCALE
        seen = torch.arange(n)[None] < n - tokens + 1 + torch.arange(tokens)[:, None]
        scores = scores.masked_fill(~seen, float("-inf"))
        if sinks:
            scores = torch.cat([scores, sink[:, None, None].expand(-1, tokens, 1)], -1)
        expected = scores.softmax(-1)[..., :n] @ rows[i][:, :512].float()
        assert (out[i].transpose(0, 1).float() - expected).abs().max() < bound * max(1, expected.abs().max().item())


def test_queries_and_keys_are_asked_for_in_parts(sglang, monkeypatch):
    path = "models/deepseek_common/utils.py"
    assert "FORWARD_ABSORB_CORE_ATTENTION_BACKENDS = [" in source(path)
    module = ModuleType("sglang.srt.models.deepseek_common.utils")
    module.FORWARD_ABSORB_CORE_ATTENTION_BACKENDS = backends = ["fa3"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model = runner()
    model.model_config = SimpleNamespace(hf_config=SimpleNamespace(llama_4_scaling={"beta": 0.1}))
    sglang.registry.ATTENTION_BACKENDS["flashlatent"](model)
    assert backends == ["fa3"]  # that scale is applied to the concatenation
    for _ in range(2):
        sglang.registry.ATTENTION_BACKENDS["flashlatent"](runner())
    assert backends == ["fa3", "flashlatent"]


@pytest.mark.parametrize("more, sentence", [
    (dict(use_mla_backend=False), "keys and values apart"),
    (dict(index_topk=2048), "index_topk is 2048.; leave --decode-attention-backend out"),
    (dict(index_topk_of_text=1024), "index_topk is 1024"),
    (dict(unified_memory=True), "--enable-unified-memory is set; leave it out"),
    (dict(prefill_attention_backend=None), "--prefill-attention-backend is None; fa3"),
    (dict(prefill_attention_backend="flashlatent"), "--prefill-attention-backend is flashlatent; fa3"),
    (dict(kv_cache_dtype=torch.float8_e4m3fn), "--kv-cache-dtype is torch.float8_e4m3fn; auto"),
    (dict(dcp_size=2), "--dcp-size is 2; 1"), (dict(speculative_eagle_topk=4), "--speculative-eagle-topk is 4; 1")])
def test_refusals_name_the_option(sglang, more, sentence):
    with pytest.raises(ValueError, match=sentence):
        sglang.registry.ATTENTION_BACKENDS["flashlatent"](runner(**more))


# The host may know lengths; if not, and in graphs, an environment variable says what to expect.
def test_kernels_are_chosen_for_lengths_that_are_known(sglang, monkeypatch):
    for value, expected in ((None, 8192), ("0", 0), ("500", 500)):
        if value is not None:
            monkeypatch.setenv("FLASHLATENT_TYPICAL_TOKENS", value)
        backend = sglang.registry.ATTENTION_BACKENDS["flashlatent"](runner())
        batch = SimpleNamespace(forward_mode=mode("DECODE"), batch_size=2, req_pool_indices=torch.tensor([0, 1]),
                                seq_lens=torch.tensor([40, 70]))
        backend.init_forward_metadata(batch)
        assert backend.typical_tokens == expected
        batch.seq_lens_cpu = torch.tensor([40, 70])
        backend.init_forward_metadata(batch)
        assert backend.typical_tokens == 128
    for value in ("-1", "many", ""):
        monkeypatch.setenv("FLASHLATENT_TYPICAL_TOKENS", value)
        with pytest.raises(ValueError, match=f"FLASHLATENT_TYPICAL_TOKENS is '{value}'; 0"):
            sglang.registry.ATTENTION_BACKENDS["flashlatent"](runner())


def test_prompts_are_another_backends(sglang):
    backend = sglang.registry.ATTENTION_BACKENDS["flashlatent"](runner())
    batch = SimpleNamespace(forward_mode=mode("EXTEND"))
    with pytest.raises(NotImplementedError, match="prompts go to --prefill-attention-backend"):
        backend.forward(None, None, None, None, batch)


def test_drafts_of_various_numbers_are_refused(sglang):
    backend = sglang.registry.ATTENTION_BACKENDS["flashlatent"](runner(drafts=4))
    batch = SimpleNamespace(forward_mode=mode("TARGET_VERIFY"),
                            spec_info=SimpleNamespace(ragged_verify_layout=object()))
    with pytest.raises(NotImplementedError, match="SGLANG_RAGGED_VERIFY_MODE"):
        backend.forward(None, None, None, None, batch)


# SGLang stages lengths and requests of a replay in the tensors that it captured; the captured work is repeated.
def test_a_graph_repeats_page_tables_and_lengths(sglang):
    model = runner()
    backend = sglang.registry.ATTENTION_BACKENDS["flashlatent"](model)
    backend.init_cuda_graph_state(4, 4)
    assert backend.get_cuda_graph_seq_len_fill_value() == 1
    batch = SimpleNamespace(forward_mode=mode("DECODE"), batch_size=2, req_pool_indices=torch.tensor([0, 0]),
                            seq_lens=torch.tensor([1, 1]))
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    backend.init_forward_metadata_in_graph(batch)
    shape = backend.block_table.shape
    model.req_to_token_pool.req_to_token[5] = torch.arange(12 * PAGE) + 3 * PAGE
    batch.req_pool_indices[1], batch.seq_lens[1] = 5, 50
    backend.init_forward_metadata_out_graph(batch)
    backend.init_forward_metadata_in_graph(batch)
    assert backend.block_table.shape == shape
    assert backend.block_table[1, :4].tolist() == [3, 4, 5, 6] and backend.cache_seqlens.tolist() == [1, 50]


def test_deterministic_inference_asks_for_bits_of_their_own(sglang):
    for wanted in (False, True):
        backend = sglang.registry.ATTENTION_BACKENDS["flashlatent"](runner(deterministic=wanted))
        assert backend.batch_invariant is wanted


def test_an_unknown_sglang_is_left_alone_with_one_warning(sglang, monkeypatch, caplog):
    monkeypatch.setattr(flashlatent.sglang, "_done", False)
    monkeypatch.setattr(sglang.base, "AttentionBackend", object)
    flashlatent.sglang.register()
    assert "AttentionBackend: init_forward_metadata_in_graph is missing" in caplog.text
