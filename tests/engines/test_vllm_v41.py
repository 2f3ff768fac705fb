"""flashlatent.vllm's DeepSeek V4.1 layer beside plain float32, on the GPU where there is one: decode and prompts from
records of 584, 528 and 288 bytes, the writer of 288, and how records are chosen."""

import os
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
TREE = os.environ.get("FLASHLATENT_VLLM")
if not TREE or not os.path.isdir(os.path.join(TREE, "vllm/models/deepseek_v41")):
    pytest.skip("FLASHLATENT_VLLM is no vLLM with DeepSeek V4.1; scripts/check engines sets it to one",
                allow_module_level=True)
sys.path.insert(0, TREE)
sys.path.insert(0, os.path.dirname(__file__))

import flashlatent  # noqa: E402
import flashlatent.vllm  # noqa: E402
from flashlatent import _sparse  # noqa: E402
from flashlatent.vllm import _refusals, _v4_choice  # noqa: E402
from v4_case import DIM, WINDOW, case, empty_cache, on_device, rotation, rows_of, run  # noqa: E402
from vllm_case import DEVICE  # noqa: E402

flashlatent.vllm.register()
RECORDS = [(584, 584), (528, 528), (528, 288)]  # of window and compressed tokens
LARGEST = [0, 0.5, 1, 1.5, 2, 3, 4, 6]  # magnitudes of e2m1


def v41_case(ratio, records, source="layer"):
    """(layer, metadata by layer name, q, what float32 says); the compressed cache is the layer's own, or of `source`."""
    from flashlatent.vllm.deepseek_v41 import FlashLatentV41Attention
    from vllm.models.deepseek_v41.sparse_mla import DeepseekV4FlashMLAMetadata

    layer, swa, (table, requests, *_), q, expected = case(FlashLatentV41Attention, ratio, compressed=ratio > 0,
                                                          window_page=32, block=64, records=records)
    layer.is_kv_source = source == "layer"
    layer.compressed_cache_prefix = source if ratio > 0 else None
    layer.use_pcp = False
    metadata = {"window": swa}
    if ratio > 0:
        metadata[source] = DeepseekV4FlashMLAMetadata(
            num_reqs=3, max_query_len=20, max_seq_len=300, num_actual_tokens=len(requests), query_start_loc=None,
            slot_mapping=None, block_table=table, req_id_per_token=requests, block_size=64, topk_tokens=WINDOW)
    if source != "layer":
        layer._static_forward_context = {source: SimpleNamespace(kv_cache=layer.kv_cache)}
        layer.kv_cache = torch.tensor([])
    return layer, metadata, q, expected


def attend(monkeypatch, layer, metadata, q):
    from vllm.models.deepseek_v41.nvidia import flashmla
    return run(monkeypatch, flashmla, layer, metadata, q)


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("records", RECORDS)
@pytest.mark.parametrize("sparse_prefill", [True, False])
def test_decode_and_prompts_from_both_caches(monkeypatch, ratio, records, sparse_prefill):
    layer, metadata, q, expected = v41_case(ratio, records)
    monkeypatch.setattr(_sparse, "_refused", set())
    if not sparse_prefill:
        def refuse(*_, **__):
            raise flashlatent.UnsupportedError("not here")
        monkeypatch.setattr(flashlatent, "sparse_prefill", refuse)
    out = attend(monkeypatch, layer, metadata, q)
    assert (out - expected).abs().max() < 2e-2
    assert DEVICE.type != "cpu" or bool(_sparse._refused) != sparse_prefill


def test_layers_without_a_cache_of_their_own_read_their_sources(monkeypatch):
    layer, metadata, q, expected = v41_case(2, (528, 288), source="earlier")
    assert (attend(monkeypatch, layer, metadata, q) - expected).abs().max() < 2e-2


def test_measuring_memory_takes_no_workspace(monkeypatch):
    layer, _, q, _ = v41_case(0, (528, 528))
    assert not attend(monkeypatch, layer, None, q).any()


def nvfp4(rows):
    """float32 rows as a record of 288 bytes gives them back."""
    tiles = rows.view(len(rows), DIM // 16, 16)
    scales = (tiles.abs().amax(-1, keepdim=True) / 6).clamp(2**-9, 448).to(torch.float8_e4m3fn).float()
    grid = torch.tensor(LARGEST)
    middles = (grid[1:] + grid[:-1]) / 2
    size = (tiles / scales).abs()
    index = torch.searchsorted(middles, size)
    index = torch.where(torch.isin(size, middles), (index + 1) // 2 * 2, index)  # ties go to the even one
    return (grid[index] * tiles.sign() * scales).view(rows.shape)


@pytest.mark.parametrize("ratio", [1, 2])
def test_compressed_tokens_are_written_where_groups_end(monkeypatch, ratio):
    from flashlatent.vllm import _v41_writer

    generator = torch.Generator().manual_seed(3)
    tokens, page_size, padding = 77, 64 // ratio, 3
    table, rotate = rotation(200, generator)
    positions = torch.arange(11, 11 + tokens)
    ends = (positions + 1) % ratio == 0
    latent = torch.randn(tokens + padding, DIM, generator=generator).bfloat16()
    latent[:tokens][~ends] = float("nan")  # vLLM's kernel leaves these rows as they are
    pages = torch.tensor([[3, 0, 4]], dtype=torch.int32)
    place = torch.arange(tokens) // ratio
    slots = pages[0, place // page_size].long() * page_size + place % page_size
    slots[5] = -1
    cache = on_device(empty_cache(6, page_size, 288))
    compressor = SimpleNamespace(k_cache_prefix="layer", compress_ratio=ratio,
                                 _static_forward_context={"layer": SimpleNamespace(kv_cache=cache)})
    metadata = {"layer": SimpleNamespace(slot_mapping=slots.to(DEVICE))}
    monkeypatch.setattr(_v41_writer, "get_forward_context", lambda: SimpleNamespace(attn_metadata=metadata))
    before = cache.clone()
    given = latent.to(DEVICE)
    _v41_writer.insert_compressed(compressor, given, torch.cat([positions, torch.zeros(padding).long()]).to(DEVICE),
                                  SimpleNamespace(cos_sin_cache=table.to(DEVICE)))
    assert torch.equal(given.cpu().view(torch.int16), latent.view(torch.int16))  # the indexer reads it, too
    written = ends & (slots >= 0)
    seen = rows_of(cache.cpu(), pages, tokens // ratio + 1)
    expected = nvfp4(rotate(latent[:tokens].float(), positions // ratio * ratio))
    assert torch.equal(seen[place[written], :448], expected[written, :448])
    assert (seen[place[written], 448:] - expected[written, 448:]).abs().mean() < 1e-3  # sums in another order
    changed = (cache != before).any(-1).flatten().cpu()
    assert set(changed.nonzero().flatten().tolist()) == set(slots[written].tolist())


def test_nothing_is_written_where_memory_is_measured(monkeypatch):
    from flashlatent.vllm import _v41_writer

    monkeypatch.setattr(_v41_writer, "get_forward_context", lambda: SimpleNamespace(attn_metadata=None))
    _v41_writer.insert_compressed(None, torch.zeros(1, DIM), torch.zeros(1), None)
    _v41_writer.insert_compressed(None, None, torch.zeros(1), None)


def configuration(cache_dtype="auto", records=None, backend=None, ranks=1, edges=None):
    options = {"flashlatent_kv_records": records, "flashlatent_edges": edges}
    return SimpleNamespace(
        attention_config=SimpleNamespace(backend=SimpleNamespace(name=backend or flashlatent.vllm.backend_name())),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        additional_config={name: value for name, value in options.items() if value is not None},
        parallel_config=SimpleNamespace(prefill_context_parallel_size=ranks))


def choose(monkeypatch, config, which=_v4_choice.V41, faults=()):
    """What a model of vLLM gets as the class of its layers; 'theirs': vLLM's own."""
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    monkeypatch.setattr(type(current_platform), "get_device_capability",
                        classmethod(lambda cls, device_id=0: DeviceCapability(9, 0)))
    monkeypatch.setattr(_refusals, "cuda_reason", lambda: "")
    model = SimpleNamespace(_select_dsv4_attn_cls=lambda config: "theirs")
    _v4_choice._change(which, model, flashlatent.vllm.backend_name(), list(faults))
    return model._select_dsv4_attn_cls(config)


@pytest.mark.parametrize("cache_dtype, records, bytes_a_token", [
    ("auto", None, (584, 584)), ("fp8", "v4", (584, 584)), ("fp8_ds_mla", "v41", (528, 528)),
    ("auto", "v41", (528, 528)), ("nvfp4_ds_mla", None, (528, 288)), ("nvfp4_ds_mla", "v41", (528, 288)),
])
@pytest.mark.parametrize("edges", [None, True])
def test_records_are_the_users_choice(monkeypatch, cache_dtype, records, bytes_a_token, edges):
    """vLLM's own constructor decides by the function that is replaced."""
    from flashlatent.vllm._v41_writer import insert_compressed
    from vllm.models.deepseek_v41 import attention

    own = attention._use_v41_mxfp8_kv_record
    layer_class = choose(monkeypatch, configuration(cache_dtype, records, edges=edges))
    layer = made(monkeypatch, layer_class, cache_dtype)
    assert (layer.swa_bytes_per_token, layer.compressed_bytes_per_token) == bytes_a_token
    spec = layer.get_kv_cache_spec(SimpleNamespace(cache_config=SimpleNamespace(block_size=64)))
    assert (spec.state_content_bytes, spec.dtype) == (bytes_a_token[1], torch.uint8)
    writer = getattr(layer.compressor.insert_cache, "func", None)
    assert (writer is insert_compressed) == bool(edges or bytes_a_token[1] == 288)
    # vLLM's own layer in a later engine of the process has vLLM's own records.
    assert choose(monkeypatch, configuration(backend="FLASHMLA_SPARSE")) == "theirs"
    assert attention._use_v41_mxfp8_kv_record is own


class _Part(torch.nn.Module):
    """In place of parts of a layer that need process groups or a GPU."""

    def __init__(self, *_, **__):
        super().__init__()

    def insert_cache(self):
        pass


def made(monkeypatch, layer_class, cache_dtype):
    """A layer by vLLM's constructor, which owns a compressed cache of ratio 2."""
    from vllm.config import CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.models.deepseek_v41 import attention
    from vllm.models.deepseek_v41.nvidia import flashmla

    monkeypatch.setattr(layer_class, "_indexer_cls", lambda self, cache: _Part)
    for name in ("MergedColumnParallelLinear", "ColumnParallelLinear", "RowParallelLinear", "RMSNorm",
                 "DeepseekCompressor", "build_deepseek_v4_rope"):
        monkeypatch.setattr(attention, name, _Part)
    monkeypatch.setattr(attention, "get_tensor_model_parallel_world_size", lambda: 1)
    monkeypatch.setattr(flashmla, "compute_fp8_einsum_recipe", lambda size: (None, None))
    monkeypatch.setattr(flashmla, "register_dsv41_o_proj_warmup", lambda layer: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: None)
    config = VllmConfig(device_config=DeviceConfig(device="cpu"), cache_config=CacheConfig(block_size=64))
    config.cache_config.cache_dtype = cache_dtype
    config.kernel_config.enable_jit_warmup = False
    text = SimpleNamespace(
        hidden_size=DIM, num_attention_heads=16, q_lora_rank=DIM, o_lora_rank=DIM, head_dim=DIM, qk_rope_head_dim=64,
        o_groups=1, sliding_window=WINDOW, compress_ratios=[2], kv_source_layer_ids=[0], index_source_layer_ids=[0],
        index_head_dim=128, num_hidden_layers=1, rms_norm_eps=1e-6, max_position_embeddings=2048)
    config.model_config = SimpleNamespace(hf_config=text, max_model_len=2048)
    with set_current_vllm_config(config):
        return layer_class(config, prefix="model.layers.0.attn")


@pytest.mark.parametrize("config, sentence", [
    (dict(records="v5"), "flashlatent_kv_records in additional_config is 'v5'; one of v4, v41 is expected"),
    (dict(records="v4", cache_dtype="nvfp4_ds_mla"), "'v41' is expected beside it"),
    (dict(ranks=2), "prefill_context_parallel_size is 2; DeepSeek V4.1 takes 1"),
    (dict(records="v41", backend="FLASHMLA_SPARSE"), "the attention backend is not "),
])
def test_choices_that_do_not_fit_are_refused(monkeypatch, config, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose(monkeypatch, configuration(**config))


def test_records_are_refused_where_they_are_not_to_be_had(monkeypatch):
    with pytest.raises(ValueError, match="DeepSeek V4 has no other records than those of 584 bytes: 'v4' is expected"):
        choose(monkeypatch, configuration(records="v41"), _v4_choice.V4)
    with pytest.raises(ValueError, match="insert_cache is not there: 'v4' is expected, or leave it out"):
        choose(monkeypatch, configuration(records="v41"), faults=["insert_cache is not there"])
    assert choose(monkeypatch, configuration(), faults=["insert_cache is not there"]) == "theirs"
    assert choose(monkeypatch, configuration(backend="FLASHMLA_SPARSE")) == "theirs"


def test_vllms_module_is_changed():
    from vllm.models.deepseek_v41.nvidia import model
    assert model._select_dsv4_attn_cls.__module__ == "flashlatent.vllm._v4_choice"
