"""flashlatent.vllm's layers of DeepSeek V4 and V4.1 with their edges: queries, window tokens and outputs beside vLLM's
own order of rounding, and outputs beside vLLM's own kernel; edges in attention beside edges apart; a whole layer beside
float64."""

import dataclasses
import os
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
TREE = os.environ.get("FLASHLATENT_VLLM")
if not TREE:
    pytest.skip("FLASHLATENT_VLLM is not set; scripts/check engines sets it", allow_module_level=True)
sys.path.insert(0, TREE)
sys.path.insert(0, os.path.dirname(__file__))

import flashlatent  # noqa: E402
import flashlatent.vllm  # noqa: E402
from flashlatent.vllm import _refusals, _v4_choice  # noqa: E402
from v4_case import (  # noqa: E402
    DECODES, DIM, HEADS, LENGTHS, NEW, SCALE, WINDOW, case, empty_cache, on_device, rotation, rows_of)
from vllm_case import DEVICE  # noqa: E402

flashlatent.vllm.register()
HAS_V41 = os.path.isdir(os.path.join(TREE, "vllm/models/deepseek_v41"))
KINDS = [("v4", 584)] + [("v41", 584), ("v41", 528)] * HAS_V41  # and bytes of a window token
PADDED, EPS, PAGE, GROUPS, RANK = 8, 1e-6, 32, 2, 256


def layer_class(kind):
    if kind == "v4":
        from flashlatent.vllm.deepseek_v4 import FlashLatentV4EdgesAttention
        return FlashLatentV4EdgesAttention
    from flashlatent.vllm.deepseek_v41 import FlashLatentV41EdgesAttention
    return FlashLatentV41EdgesAttention


def with_edges(layer, window, table, generator):
    """A layer's members that its edges read. wo_a is e4m3, with a scale for 128 times 128."""
    width = layer.n_local_heads // GROUPS * DIM
    layer.head_dim = DIM
    layer.eps, layer.rotary_emb = EPS, SimpleNamespace(cos_sin_cache=table.to(DEVICE))
    layer.swa_cache_layer = SimpleNamespace(prefix="window", kv_cache=window)
    layer.n_local_groups, layer.o_lora_rank, layer._einsum_recipe = GROUPS, RANK, (1, 128, 128)
    layer.wo_a = SimpleNamespace(
        weight=torch.randn(GROUPS, RANK, width, generator=generator).to(torch.float8_e4m3fn).to(DEVICE),
        weight_scale_inv=(torch.rand(GROUPS, RANK // 128, width // 128, generator=generator) + 0.5).to(DEVICE))
    layer.wo_b = lambda z: z
    layer.gemm_rs = None
    return layer


def small_layer(kind, record, generator, heads=HEADS):
    """(layer without caches of compressed tokens, its rotation)"""
    made = layer_class(kind)
    layer = made.__new__(made)
    torch.nn.Module.__init__(layer)
    layer.n_local_heads, layer.padded_heads = heads, made.get_padded_num_q_heads(heads)
    table, rotate = rotation(200, generator)
    return with_edges(layer, on_device(empty_cache(4, PAGE, record)), table, generator), rotate


def vllms_queries(kind, q, positions, rotate):
    """bf16, in the order of vLLM's kernel."""
    x = q.float()
    if kind == "v4":
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return rotate(x, positions).bfloat16()


def bits(x):
    return x.cpu().view(torch.int16)


def whole_layer(kind, record, generator):
    """(layer, metadata, positions, q, kv, its rotation): two requests that decode, and a prompt, before new tokens are
    stored."""
    table, rotate = rotation(max(LENGTHS), generator)
    layer, swa, *_ = case(layer_class(kind), 1 if kind == "v4" else 0, compressed=False, window_page=PAGE,
                          records=(record, record))
    layer.is_kv_source, layer.compressed_cache_prefix, layer.use_pcp = False, None, False
    with_edges(layer, layer.swa_cache_layer.kv_cache.to(DEVICE), table, generator)
    positions = torch.cat([torch.arange(n - s, n) for n, s in zip(LENGTHS, NEW)])
    requests, pages = swa.token_to_req_indices.cpu(), swa.block_table.cpu()
    swa.slot_mapping = (pages[requests, positions // PAGE].long() * PAGE + positions % PAGE).to(DEVICE)
    q = torch.randn(len(positions), HEADS, DIM, generator=generator).bfloat16()
    kv = torch.randn(len(positions), DIM, generator=generator).bfloat16()
    return layer, {"window": swa}, positions, q, kv, rotate


def vllms_class(layer):
    return next(base for base in type(layer).__mro__ if base.__module__.endswith(".flashmla"))


def attend(monkeypatch, layer, metadata, q, positions):
    """What forward_mqa() writes, of this vLLM's kind."""
    from flashlatent.vllm import _v4_layer

    for module in (_v4_layer, sys.modules[vllms_class(layer).__module__]):
        monkeypatch.setattr(module, "get_forward_context", lambda: SimpleNamespace(attn_metadata=metadata))
    q, positions = q.to(DEVICE, copy=True), positions.to(DEVICE)
    if hasattr(vllms_class(layer), "_alloc_attn_out"):
        out = layer._alloc_attn_out(len(q), q)
    else:
        out = q.new_full((len(q), PADDED, DIM), float("nan"))
    layer.forward_mqa(q, None, positions, out)
    assert not hasattr(layer, "_edges")
    return out


def part_of(metadata, rows):
    """The metadata of a step that has only these rows, of its decodes or its prompt."""
    swa, decodes = metadata["window"], rows.stop == DECODES
    return {"window": dataclasses.replace(
        swa, token_to_req_indices=swa.token_to_req_indices[rows], is_valid_token=swa.is_valid_token[rows],
        num_decodes=2 * decodes, num_prefills=1 - decodes, num_decode_tokens=DECODES * decodes,
        num_prefill_tokens=NEW[-1] * (1 - decodes))}


@pytest.mark.parametrize("kind, record", KINDS)
def test_queries_are_vllms(monkeypatch, kind, record):
    from flashlatent.vllm import _v4_edges

    layer, metadata, positions, q, kv, rotate = whole_layer(kind, record, torch.Generator().manual_seed(HEADS))
    given = q.to(DEVICE, copy=True)
    assert layer._fused_qnorm_rope_kv_insert(given, kv.to(DEVICE), positions.to(DEVICE), metadata) is given
    assert torch.equal(bits(given), bits(q))
    found = {}

    def way(name):
        def prepare(step, q, cache, chosen, out, q_norm=0.0, q_rotate=(None, None), **options):
            assert (q_rotate[0] is None) == (name == "prefill")  # whose queries are prepared, in place
            found[name] = flashlatent.prepare_queries(q, norm=q_norm, positions=q_rotate[0], table=q_rotate[1])
        return prepare

    ways = {name: way(name) for name in ("decode", "prefill")}
    ours = next(base for base in layer_class(kind).__mro__ if "_forward_decode" in vars(base))
    for name, made in ways.items():
        monkeypatch.setattr(sys.modules[ours.__module__], name, made)
    monkeypatch.setattr(_v4_edges, "prefill", ways["prefill"])
    attend(monkeypatch, layer, metadata, q, positions)
    apart = (bits(torch.cat([found["decode"], found["prefill"]])) - bits(vllms_queries(kind, q, positions, rotate))).abs()
    assert apart.max() <= 1 and (apart > 0).float().mean() < 1e-3  # sums of squares in another order


@pytest.mark.parametrize("kind, record", KINDS)
@pytest.mark.parametrize("rows", [slice(0, None), slice(0, DECODES), slice(DECODES, None)], ids=["both", "decode", "prompt"])
def test_edges_in_attention_have_the_bits_of_edges_apart(monkeypatch, kind, record, rows):
    from flashlatent.vllm import _v4_edges

    layer, metadata, positions, q, kv, _ = whole_layer(kind, record, torch.Generator().manual_seed(7))
    layer._fused_qnorm_rope_kv_insert(q.to(DEVICE), kv.to(DEVICE), positions.to(DEVICE), metadata)
    q, positions = q[rows], positions[rows]
    metadata = metadata if rows == slice(0, None) else part_of(metadata, rows)
    launches, finish = [], flashlatent._native.finish_outputs_into
    monkeypatch.setattr(_v4_edges._native, "finish_outputs_into",
                        lambda *args, **options: (launches.append(1), finish(*args, **options)))
    found = attend(monkeypatch, layer, metadata, q, positions)
    in_fp8 = not isinstance(found, torch.Tensor)
    assert len(launches) == (in_fp8 and rows.stop != DECODES)  # with prompts the step is cast as a whole

    where = {"positions": positions.to(DEVICE), "table": layer.rotary_emb.cos_sin_cache}
    prepared = flashlatent.prepare_queries(q.to(DEVICE), norm=EPS if kind == "v4" else 0.0, **where)
    layer.__class__ = type(layer).__mro__[2]  # the layer without edges
    out = torch.full_like(prepared, float("nan"))
    layer.forward_mqa(prepared, None, positions.to(DEVICE), out)
    if not in_fp8:
        assert torch.equal(bits(found[:, :HEADS]), bits(out))
        return
    codes, scales = flashlatent.finish_outputs(out, groups=GROUPS, scale_columns=128, **where)
    if DEVICE.type == "cpu":
        assert torch.equal(found.data.transpose(0, 1), codes) and torch.equal(found.scale, scales)
        return
    values = [(c.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, 128)) *
               s.permute(2, 0, 1)[:len(q), :, :, None]) for c, s in ((found.data.transpose(0, 1), found.scale), (codes, scales))]
    assert (values[0] - values[1]).norm() < 0.02 * values[1].norm()  # kernels of both do not round between


@pytest.mark.parametrize("kind, record", KINDS)
def test_window_tokens_are_vllms(kind, record):
    generator = torch.Generator().manual_seed(record)
    layer, rotate = small_layer(kind, record, generator)
    rows, padding = 90, 3
    kv = torch.randn(rows + padding, DIM, generator=generator).bfloat16()
    positions = torch.randint(0, 200, (rows + padding,), generator=generator)
    slots = torch.randperm(4 * PAGE, generator=generator)[:rows]
    slots[7] = -1
    before = layer.swa_cache_layer.kv_cache.clone()
    metadata = {"window": SimpleNamespace(slot_mapping=slots.to(DEVICE))}
    q = torch.zeros(len(kv), HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
    layer._fused_qnorm_rope_kv_insert(q, kv.to(DEVICE), positions.to(DEVICE), metadata)
    cache, written = layer.swa_cache_layer.kv_cache.cpu(), slots >= 0
    # vLLM rounds what is rotated to bf16, of 528 bytes before it is quantised.
    rotated = rotate(kv[:rows].float(), positions[:rows]).bfloat16()
    expected = empty_cache(4, PAGE, record)
    parts = (rotated[:, :448], rotated[:, 448:]) if record == 584 else (rotated, None)
    options = {} if record == 584 else dict(kv_format="mxfp8_528", scales="token")
    flashlatent.append_latent(*parts, slots, expected.unsqueeze(2), **options)
    apart = (cache.flatten(0, 1)[slots[written]].int() - expected.flatten(0, 1)[slots[written]].int()).abs()
    assert record == 528 or not apart.any()
    assert (apart[:, :448] == 0).all() and (apart > 0).float().mean() < 6e-3
    if record == 528:
        changed = (cache != before.cpu()).any(-1).flatten()
        assert set(changed.nonzero().flatten().tolist()) <= set(slots[written].tolist())


def fp8_einsum(equation, given, weights, out, recipe):
    """DeepGEMM's product in float32, of the operands as vLLM hands them over on Hopper."""
    (x, x_scale), (w, w_scale) = given, weights
    rows, groups, width = x.shape
    assert equation == "bhr,hdr->bhd" and recipe == (1, 128, 128)
    assert x.dtype == torch.float8_e4m3fn and x.transpose(0, 1).is_contiguous()
    padded = -(-rows // 4) * 4
    assert x_scale.shape == (rows, groups, width // 128) and x_scale.dtype == torch.float32
    assert x_scale.stride() == (1, width // 128 * padded, padded)
    left = x.float() * x_scale.repeat_interleave(128, 2)
    right = w.float() * w_scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    out.copy_(torch.einsum("bhr,hdr->bhd", left, right))


@pytest.fixture
def deep_gemm(monkeypatch):
    """Its products, and what they were given."""
    from vllm.utils import deep_gemm

    calls = []

    def product(*args, **options):
        calls.append(args)
        fp8_einsum(*args, **options)

    monkeypatch.setattr(deep_gemm, "fp8_einsum", product)
    return calls


@pytest.mark.parametrize("kind, record", KINDS)
@pytest.mark.parametrize("rows", [1, 6])
def test_outputs_are_those_of_vllms_kernel(monkeypatch, deep_gemm, kind, record, rows):
    pytest.importorskip("triton")
    import triton_on_cpu

    generator = torch.Generator().manual_seed(rows)
    layer, _ = small_layer(kind, record, generator)
    o = torch.randn(rows, PADDED, DIM, generator=generator)
    o *= 2.0**torch.randint(-30, 8, (rows, PADDED, 1), generator=generator)
    o[0, 0, :128] = 0
    o = o.bfloat16()
    positions = torch.randint(0, 200, (rows,), generator=generator)
    o[:, HEADS:] = float("nan")
    projected = layer._o_proj(o.to(DEVICE), positions.to(DEVICE))
    ((_, (codes, scales), *_),) = deep_gemm
    assert projected.shape == (rows, GROUPS * RANK) and projected.dtype == torch.bfloat16

    path = "vllm/models/deepseek_v4/common/ops/fused_inv_rope_fp8_quant.py"
    name = "FusedInvRopeFP8QuantKernel.kernel" if HAS_V41 else "_fused_inv_rope_fp8_quant_per_head"
    theirs = triton_on_cpu.kernel(TREE, path, name)
    triton_on_cpu.interpret(monkeypatch)
    table, width, padded = layer.rotary_emb.cos_sin_cache.cpu(), HEADS // GROUPS * DIM, -(-rows // 4) * 4
    their_codes = torch.empty(GROUPS, rows, width, dtype=torch.float8_e4m3fn)
    their_scales = torch.empty(GROUPS, width // 128, padded)
    given = dict(
        o_ptr=o, positions_ptr=positions, cos_sin_cache_ptr=table, num_tokens=rows, heads_per_group=HEADS // GROUPS,
        o_stride_token=o.stride(0), o_stride_head=DIM, cache_stride_pos=64, scale_ptr=their_scales,
        scale_stride_group=their_scales.stride(0), scale_stride_k=padded, fp8_max=448.0, eps=1e-10,
        QUANT_GROUP_SIZE=128, CHUNKS_PER_HEAD=4, HALF_ROPE=32, NOPE_DIM=448, TMA_ALIGNED_SCALES=False,
        launch_pdl=False, out_ptr=their_codes, out_stride_group=rows * width, out_stride_token=width, QUANTIZE=True)
    given.update(fp8_ptr=their_codes, fp8_stride_group=rows * width, fp8_stride_token=width, ROPE_START=64,
                 USE_GDC=False)  # vLLM 0.26
    theirs[(padded, HEADS)](**{name: given[name] for name in theirs.arg_names})
    assert torch.equal(scales.cpu(), their_scales.permute(2, 0, 1)[:rows])
    assert torch.equal(codes.cpu().view(torch.uint8), their_codes.transpose(0, 1).view(torch.uint8))


@pytest.mark.skipif(not HAS_V41, reason="this vLLM has no DeepSeek V4.1")
@pytest.mark.parametrize("record, name", [(584, "_rope_quant_insert_kernel"), (528, "_rope_quant_insert_mxfp8_kernel")])
@pytest.mark.parametrize("ratio", [1, 2])
def test_compressed_tokens_are_those_of_vllms_kernel(monkeypatch, record, name, ratio):
    pytest.importorskip("triton")
    import triton_on_cpu
    from flashlatent.vllm import _v41_writer

    generator = torch.Generator().manual_seed(record)
    table, _ = rotation(200, generator)
    rows = 40
    latent = torch.randn(rows, DIM, generator=generator)
    latent *= (2.0**torch.randint(-20, 5, (rows, DIM // 32), generator=generator)).repeat_interleave(32, 1)
    latent, positions = latent.bfloat16(), torch.arange(11, 11 + rows)
    slots = torch.randperm(4 * PAGE, generator=generator)[:rows]
    slots[5] = -1
    cache, expected = on_device(empty_cache(4, PAGE, record)), empty_cache(4, PAGE, record)
    _v41_writer.write(latent.to(DEVICE), positions.to(DEVICE), table.to(DEVICE), cache, slots.to(DEVICE), ratio)
    theirs = triton_on_cpu.kernel(TREE, "vllm/models/deepseek_v41/common/ops/fused_compress_quant_cache.py", name)
    triton_on_cpu.interpret(monkeypatch)
    theirs[(rows,)](latent, positions, table, expected, slots, COS_STRIDE=64, CACHE_STRIDE=expected.stride(0),
                    CACHE_BLOCK=PAGE, COMPRESS_RATIO=ratio, SANITIZE_CACHE_NANS=False)
    whole = [c.cpu().as_strided((4, PAGE * record), (c.stride(0), 1)) for c in (cache, expected)]
    assert (whole[0] != 127).float().mean() > 0.1 / ratio and torch.equal(*whole)


@pytest.mark.parametrize("heads", [64, 8])
def test_index_queries_are_those_of_vllms_kernel(monkeypatch, heads):
    pytest.importorskip("triton")
    import triton_on_cpu
    from flashlatent.vllm import _index_edges

    generator = torch.Generator().manual_seed(heads)
    table, _ = rotation(200, generator)
    rows = 5
    q = torch.randn(rows, heads, 128, generator=generator)
    q *= 2.0**torch.randint(-20, 8, (rows, heads, 1), generator=generator)
    q, weights = q.bfloat16(), torch.randn(rows, heads, generator=generator).bfloat16()
    positions = torch.randint(0, 200, (rows,), generator=generator)
    given = (positions, q, table, weights)
    codes, scaled = _index_edges.quantize_queries(None, *(x.to(DEVICE) for x in given), 128**-0.5, heads**-0.5)
    theirs = triton_on_cpu.kernel(TREE, "vllm/models/deepseek_v4/common/ops/fused_indexer_q.py",
                                  "FusedIndexerQRopeQuantTritonKernel.kernel" if HAS_V41 else
                                  "_fused_indexer_q_rope_quant_kernel", "_get_cos_sin")
    triton_on_cpu.interpret(monkeypatch)
    their_codes, their_weights = torch.empty_like(q, dtype=torch.float8_e4m3fn), torch.empty(rows, heads)
    theirs[(rows, heads)](positions, q, heads * 128, 128, table, 64, 32, their_codes, heads * 128, 128, 128, weights,
                          heads, 128**-0.5, heads**-0.5, their_weights, heads)
    assert torch.equal(codes.cpu().view(torch.uint8), their_codes.view(torch.uint8))
    assert torch.equal(scaled.cpu(), their_weights)


def test_index_queries_of_mxfp4_are_vllms():
    from flashlatent.vllm import _index_edges

    q, calls = torch.zeros(2, 8, 128), []

    def theirs(*_, **options):
        calls.append(options)
        return "theirs"

    for fp4, scale in ((True, 128**-0.5), (False, 0.5)):
        assert _index_edges.quantize_queries(theirs, None, q, None, None, scale, 8**-0.5, use_fp4=fp4,
                                             weights_out_dtype="fp32") == "theirs"
    assert calls == [dict(use_fp4=True, weights_out_dtype="fp32"), dict(use_fp4=False, weights_out_dtype="fp32")]


@pytest.mark.skipif(not HAS_V41, reason="this vLLM has no DeepSeek V4.1")
@pytest.mark.parametrize("ratio", [1, 2])
def test_index_keys_are_those_of_vllms_kernel(monkeypatch, ratio):
    pytest.importorskip("triton")
    import triton_on_cpu
    from flashlatent.vllm import _index_edges

    generator = torch.Generator().manual_seed(ratio)
    table, _ = rotation(200, generator)
    rows = 40
    keys = (torch.randn(rows + 2, 128, generator=generator)).bfloat16()
    weight, positions = torch.randn(128, generator=generator).bfloat16(), torch.arange(11, 11 + rows + 2)
    slots = torch.randperm(4 * PAGE, generator=generator)[:rows]
    slots[5] = -1
    expected = torch.full((4, PAGE, 132), 127, dtype=torch.uint8)
    cache = expected.to(DEVICE, copy=True)
    _index_edges.store_keys(*(x.to(DEVICE) for x in (keys, positions, table, weight)), EPS, cache, slots.to(DEVICE),
                            ratio, False)
    theirs = triton_on_cpu.kernel(TREE, "vllm/models/deepseek_v41/common/ops/indexer_k_store.py",
                                  "_indexer_k_norm_rope_quant_store_kernel")
    triton_on_cpu.interpret(monkeypatch)
    theirs[(rows,)](keys, 128, positions, weight, EPS, table, 64, expected, slots, PAGE, HEAD_SIZE=128,
                    ROPE_HEAD_DIM=64, COMPRESS_RATIO=ratio, TOKEN_STRIDE=128, SCALE_DIM=4, KV_BLOCK_STRIDE=PAGE * 132,
                    FP8_MAX=448.0, USE_FP4=False, MX_SCALE=False, SHUFFLE=False, BLOCK_TILE_SIZE=16, HEAD_TILE_SIZE=16)
    assert (expected != 127).float().mean() > 0.1 / ratio
    assert (cache.cpu() != expected).float().mean() < 1e-4  # sums of squares in another order


@pytest.mark.parametrize("kind", ["v4"] + ["v41"] * HAS_V41)
def test_indexers_are_changed_once(kind):
    from flashlatent.vllm import _index_edges, _replaced

    module = SimpleNamespace(fused_indexer_q_rope_quant="theirs", **({} if kind == "v4" else
                                                                     {"indexer_k_norm_rope_store": "theirs"}))
    for _ in range(2):
        _index_edges.take_over(module)
    assert module.fused_indexer_q_rope_quant.args == ("theirs",)
    assert getattr(module, "indexer_k_norm_rope_store", None) is (None if kind == "v4" else _index_edges.store_keys)
    _replaced.restore()
    assert set(vars(module).values()) == {"theirs"}


@pytest.mark.parametrize("kind, record", KINDS)
def test_a_layer_from_projected_queries_to_projected_outputs(monkeypatch, deep_gemm, kind, record):
    layer, metadata, positions, q, kv, rotate = whole_layer(kind, record, torch.Generator().manual_seed(9))
    layer._fused_qnorm_rope_kv_insert(q.to(DEVICE), kv.to(DEVICE), positions.to(DEVICE), metadata)
    out = attend(monkeypatch, layer, metadata, q, positions)
    projected = layer._o_proj(out, positions.to(DEVICE)).float().cpu()

    requests, pages = (x.cpu() for x in (metadata["window"].token_to_req_indices, metadata["window"].block_table))
    queries = q.double()
    if kind == "v4":
        queries = queries * torch.rsqrt(queries.square().mean(-1, keepdim=True) + EPS)
    queries = rotate(queries, positions)
    tokens = rotate(kv.double(), positions)
    cache, outputs = layer.swa_cache_layer.kv_cache.cpu(), []
    for row, (request, at) in enumerate(zip(requests.tolist(), positions.tolist())):
        keys = rows_of(cache, pages[request:request + 1], at + 1).double()
        new = (requests == request) & (positions <= at)
        assert (keys[positions[new]] - tokens[new]).norm() < 0.04 * tokens[new].norm()  # e4m3
        keys = keys[max(0, at + 1 - WINDOW):]
        scores = torch.cat([queries[row] @ keys.T * SCALE, layer.attn_sink[:HEADS, None].cpu().double()], 1)
        outputs.append(scores.softmax(1)[:, :-1] @ keys)
    outputs = rotate(torch.stack(outputs), positions, back=True)
    weight = layer.wo_a.weight.cpu().double() * layer.wo_a.weight_scale_inv.cpu().double().repeat_interleave(
        128, 1).repeat_interleave(128, 2)
    expected = torch.einsum("bhr,hdr->bhd", outputs.view(len(q), GROUPS, -1), weight).flatten(1)
    assert (projected - expected).norm() < 0.04 * expected.norm()  # outputs are e4m3, too


@pytest.mark.parametrize("kind, record", KINDS)
def test_measuring_memory_attends_to_nothing(monkeypatch, kind, record):
    layer, _ = small_layer(kind, record, torch.Generator().manual_seed(1))
    q = torch.ones(5, HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
    assert layer._fused_qnorm_rope_kv_insert(q, q[:, 0], torch.zeros(5), None) is q
    out = attend(monkeypatch, layer, None, q, torch.zeros(5, dtype=torch.int64))
    parts = (out[:, :HEADS],) if isinstance(out, torch.Tensor) else (out.data, out.scale)
    assert not any(part.any() for part in parts)


@pytest.mark.parametrize("kind, record", KINDS)
def test_a_projection_that_is_not_fp8_is_vllms(monkeypatch, kind, record):
    layer, _ = small_layer(kind, record, torch.Generator().manual_seed(1))
    layer.wo_a = SimpleNamespace(weight=torch.zeros(1, dtype=torch.bfloat16))
    base, o = vllms_class(layer), torch.zeros(2, PADDED, DIM, dtype=torch.bfloat16, device=DEVICE)
    monkeypatch.setattr(base, "_o_proj", lambda self, o, positions: "theirs")
    assert layer._o_proj(o, None) == "theirs"
    if hasattr(base, "_alloc_attn_out"):
        assert layer._alloc_attn_out(2, o).shape == o.shape


def choose(monkeypatch, which, options, backend=None):
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    monkeypatch.setattr(type(current_platform), "get_device_capability",
                        classmethod(lambda cls, device_id=0: DeviceCapability(9, 0)))
    monkeypatch.setattr(_refusals, "cuda_reason", lambda: "")
    name = flashlatent.vllm.backend_name()
    model = SimpleNamespace(_select_dsv4_attn_cls=lambda config: "theirs")
    _v4_choice._change(which, model, name, [])
    return model._select_dsv4_attn_cls(SimpleNamespace(
        attention_config=SimpleNamespace(backend=SimpleNamespace(name=backend or name)),
        cache_config=SimpleNamespace(cache_dtype="auto"), additional_config=options,
        parallel_config=SimpleNamespace(prefill_context_parallel_size=1)))


@pytest.mark.parametrize("which, kind", [(_v4_choice.V4, "v4")] + [(_v4_choice.V41, "v41")] * HAS_V41)
def test_edges_are_the_users_choice(monkeypatch, which, kind):
    import importlib

    from flashlatent.vllm._v4_edges import V4Edges

    attention = importlib.import_module(f"vllm.models.deepseek_{kind}.attention")
    names = ("fused_indexer_q_rope_quant", "indexer_k_norm_rope_store")[:1 if kind == "v4" else 2]
    own = [getattr(attention, name) for name in names]
    changed = lambda: [getattr(attention, name) is not of for name, of in zip(names, own)]
    assert choose(monkeypatch, which, {}) is not layer_class(kind) and not any(changed())
    assert choose(monkeypatch, which, {"flashlatent_edges": True}) is layer_class(kind) and all(changed())
    for options in ({}, {"flashlatent_edges": False}):  # of a later engine of the process
        choose(monkeypatch, which, {"flashlatent_edges": True})
        assert not issubclass(choose(monkeypatch, which, options), V4Edges) and not any(changed())
        choose(monkeypatch, which, {"flashlatent_edges": True})
        assert choose(monkeypatch, which, options, "FLASHMLA_SPARSE") == "theirs" and not any(changed())
    with pytest.raises(ValueError, match="flashlatent_edges in additional_config is 1; true or false is expected"):
        choose(monkeypatch, which, {"flashlatent_edges": 1})
    with pytest.raises(ValueError, match="flashlatent_edges in additional_config is True; the attention backend"):
        choose(monkeypatch, which, {"flashlatent_edges": True}, "FLASHMLA_SPARSE")
