"""kv_format= and use_legacy= of flash_mla: every name of a cache's format, in both arrangements of scales."""

import pytest

torch = pytest.importorskip("torch")

import flashlatent
from flashlatent import flash_mla

HERE = {"V32": "fp8_656", "V32_NO_ROPE": "fp8_528", "V4": "fp8_584", "V41": "mxfp8_528", "V41_FP4": "nvfp4_288"}
NAMES = [*HERE, *HERE.values()]
ARRANGED = ("mxfp8_528", "nvfp4_288")
PAGES, PAGE_SIZE = 5, 4


def said(format, use_legacy):
    """How the functions of this package are told."""
    scales = {"scales": "page" if use_legacy else "token"} if format in ARRANGED else {}
    return {"kv_format": format, **scales}


def cache_of(format, use_legacy, seed=1):
    """A cache of random latents, and the same dequantised."""
    rows = torch.randn(PAGES, PAGE_SIZE, 1, 576 if format == "fp8_656" else 512,
                       generator=torch.Generator().manual_seed(seed)).bfloat16()
    names = said(format, use_legacy)
    cache = flashlatent.convert_cache(rows, format=format, new_scales=names.get("scales"))
    return cache, flashlatent.convert_cache(cache, format="bf16", **names)


def queries(cache):
    return torch.randn(3, 1, 8, cache.shape[-1], generator=torch.Generator().manual_seed(7)).bfloat16()


TABLE = torch.tensor([[0, 1], [4, 3], [2, 2]], dtype=torch.int32)
LENGTHS = torch.tensor([8, 5, 0], dtype=torch.int32)
INDICES = torch.tensor([[[0, 7, 19, -1]], [[3, 3, -1, 12]], [[-1, -1, -1, -1]]], dtype=torch.int32)


def decode(q, cache, metadata=None, **options):
    tokens = (None, None) if "indices" in options else (TABLE, LENGTHS)
    metadata = flash_mla.get_mla_metadata()[0] if metadata is None else metadata
    return flash_mla.flash_mla_with_kvcache(q, cache, *tokens, 512, metadata, **options)


def compiled(q, cache, **options):
    torch._dynamo.reset()  # it counts compilations
    return torch.compile(decode, fullgraph=True, backend="aot_eager")(q, cache, flash_mla.get_mla_metadata()[0], **options)


def same(results, expected):
    assert all(map(torch.equal, results, expected))


@pytest.mark.parametrize("use_legacy", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_decode_and_prefill(name, use_legacy):
    format = HERE.get(name, name)
    cache, plain = cache_of(format, use_legacy)
    q = queries(plain)
    options = {"kv_format": name, "use_legacy": use_legacy}
    same(decode(q, cache, **options), decode(q, plain))
    sparse = decode(q, plain, indices=INDICES)
    same(decode(q, cache, indices=INDICES, **options), sparse)
    assert (sparse[1][2] == torch.inf).all() and (sparse[0][0] != 0).any()
    # Sparse prefill of the same tokens, of rows and of this cache.
    rows, chosen = plain.reshape(-1, 1, plain.shape[-1]), INDICES
    out, logits, lse = flash_mla.flash_mla_sparse_fwd(q[:, 0], rows, chosen, q.shape[-1]**-0.5, use_legacy=use_legacy)
    here = flashlatent.sparse_prefill(q[:, 0], cache, chosen, softmax_scale=q.shape[-1]**-0.5,
                                      **said(format, use_legacy))
    same((out, logits), here[:2])
    same((out, lse), (sparse[0][:, 0], sparse[1][:, :, 0]))


@pytest.mark.parametrize("use_legacy", [False, True])
@pytest.mark.parametrize("name", HERE)
def test_compiled(name, use_legacy):
    cache, plain = cache_of(HERE[name], use_legacy)
    q = queries(plain)
    same(compiled(q, cache, indices=INDICES, kv_format=name, use_legacy=use_legacy), decode(q, plain, indices=INDICES))


@pytest.mark.parametrize("format", ARRANGED)
def test_a_cache_of_that_width_is_v41(format):
    for use_legacy in (False, True):
        cache, plain = cache_of(format, use_legacy)
        q = queries(plain)
        same(decode(q, cache, use_legacy=use_legacy), decode(q, plain))
        assert not torch.equal(decode(q, cache, use_legacy=not use_legacy)[0], decode(q, plain)[0])
    with pytest.raises(ValueError, match="kv_format"):  # elsewhere the caller says it
        flashlatent.decode(q, cache, TABLE, LENGTHS, softmax_scale=0.05)


@pytest.mark.parametrize("use_legacy", [False, True])
@pytest.mark.parametrize("name, first, extra", [
    ("V32", "fp8_656", "fp8_656"), ("V32_NO_ROPE", "fp8_528", "fp8_528"), ("V4", "fp8_584", "fp8_584"),
    ("V41", "mxfp8_528", "mxfp8_528"), ("V41", "mxfp8_528", "nvfp4_288"), ("V41_FP4", "mxfp8_528", "nvfp4_288"),
    ("V41_FP4", "nvfp4_288", "nvfp4_288"), ("mxfp8_528", "mxfp8_528", "nvfp4_288"),
    ("nvfp4_288", "nvfp4_288", "nvfp4_288"), (None, "mxfp8_528", "nvfp4_288"), (None, "mxfp8_528", "mxfp8_528"),
])
def test_extra_cache(name, first, extra, use_legacy):
    (cache, plain), (more, plain_more) = cache_of(first, use_legacy), cache_of(extra, use_legacy, seed=2)
    q = queries(plain)
    options = {"indices": INDICES, "extra_indices_in_kvcache": INDICES.flip(2)[..., :3].contiguous()}
    expected = decode(q, plain, extra_k_cache=plain_more, **options)
    options |= {"extra_k_cache": more, "kv_format": name, "use_legacy": use_legacy}
    same(decode(q, cache, **options), expected)
    same(compiled(q, cache, **options), expected)


def test_elements_of_one_size():
    rows = torch.randn(PAGES, PAGE_SIZE, 1, 576, generator=torch.Generator().manual_seed(1)).bfloat16()
    q, scale = queries(rows), torch.tensor([2.0**-6])
    same(decode(q, rows, kv_format="plain"), decode(q, rows))
    cache = flashlatent.convert_cache(rows, format="e4m3", new_kv_scale=scale)
    same(decode(q, cache, kv_format="e4m3", descale_k=scale), decode(q, cache, descale_k=scale))


@pytest.mark.parametrize("format", HERE.values())
def test_int8(format):
    """flash_mla takes records as int8, too."""
    cache, plain = cache_of(format, False)
    q, options = queries(plain), {"kv_format": format}
    expected = decode(q, cache, **options)
    same(decode(q, cache.view(torch.int8), **options), expected)
    same(compiled(q, cache.view(torch.int8), **options), expected)
    if format == "mxfp8_528":
        extra = {"indices": INDICES, "extra_indices_in_kvcache": INDICES, **options}
        same(decode(q, cache, extra_k_cache=cache.view(torch.int8), **extra), decode(q, cache, extra_k_cache=cache, **extra))


def test_int8_without_scales():
    rows = torch.ones(PAGES, PAGE_SIZE, 1, 576, dtype=torch.int8)
    with pytest.raises(flashlatent.InvalidArgumentError, match="k_cache has elements of type int8; .*float8_e4m3fn"):
        decode(queries(rows), rows)


@pytest.mark.parametrize("name, format, message", [
    ("V32", "fp8_584", "k_cache is torch.uint8 .*584.*; with kv_format 'V32' its last dimension must be 656"),
    ("V41", "nvfp4_288", "with kv_format 'V41' its last dimension must be 528"),
    ("V41_FP4", "fp8_584", "with kv_format 'V41_FP4' its last dimension must be 528 or 288"),
    ("e4m3", "fp8_656", "with kv_format 'e4m3' it must be of bytes, and its last dimension 576 or 512"),
    ("plain", "fp8_656", "with kv_format 'plain' it must have q's dtype"),
])
def test_another_width(name, format, message):
    cache, plain = cache_of(format, False)
    with pytest.raises(flashlatent.InvalidArgumentError, match=message):
        decode(queries(plain), cache, kv_format=name)


@pytest.mark.parametrize("changed, message", [
    ({"kv_format": ["V41"]}, "kv_format is a list; 'V32'"),
    ({"cache": 3, "kv_format": "V41"}, "k_cache is 3; a torch.Tensor"),
    ({"cache": torch.tensor(3), "kv_format": "V41"}, "k_cache is tensor.3.; a torch.Tensor"),
])
def test_wrong_types(changed, message):
    cache, plain = cache_of("mxfp8_528", False)
    with pytest.raises(flashlatent.FlashLatentError, match=message):
        decode(queries(plain), **{"cache": cache, **changed})


def test_extra_cache_of_another_format():
    cache, plain = cache_of("mxfp8_528", False)
    options = {"indices": INDICES, "extra_indices_in_kvcache": INDICES}
    with pytest.raises(flashlatent.InvalidArgumentError, match="extra_k_cache is .*288"):
        decode(queries(plain), cache, extra_k_cache=cache, kv_format="V41_FP4", **options)
    with pytest.raises(flashlatent.InvalidArgumentError, match="extra_k_cache is .*528"):
        decode(queries(plain), cache, extra_k_cache=cache_of("fp8_584", False)[0], kv_format="V32_NO_ROPE", **options)


@pytest.mark.parametrize("use_legacy", [False, True])
def test_fused_edges(use_legacy):
    (cache, plain), (more, plain_more) = cache_of("mxfp8_528", use_legacy), cache_of("nvfp4_288", use_legacy, seed=2)
    angles = torch.rand(40, 32, generator=torch.Generator().manual_seed(3)) * 6.28
    edges = {"enable_q_norm": True, "rms_norm_eps": 1e-6, "token_positions": torch.tensor([4, 9, 1], dtype=torch.int32),
             "is_rope_neox_style": False, "rope_dim": 64, "cos_sin_cache": torch.cat([angles.cos(), angles.sin()], 1),
             "n_wv_group": 2, "num_per_channels": 128, "use_tma_aligned_col_major_sf": True, "round_sf": True,
             "use_packed_ue8m0": False, "q": queries(plain)[:, 0], "sm_scale": 0.05, "indices_in_kvcache": INDICES[:, 0],
             "extra_indices_in_kvcache": INDICES[:, 0, :3].contiguous()}
    decode_of = flash_mla.fused_norm_rope_attn_rope_cast.decode
    results = decode_of(**edges, k_cache=cache, extra_k_cache=more, use_legacy=use_legacy)
    expected = decode_of(**edges, k_cache=plain, extra_k_cache=plain_more)
    same([result.view(torch.uint8) for result in results[:1]], [result.view(torch.uint8) for result in expected[:1]])
    same(results[1:], expected[1:])
    refused = {"k_cache": "x", "cos_sin_cache": None, "rms_norm_eps": None, "n_wv_group": "2", "sm_scale": [1.0],
               "token_positions": torch.zeros(2, dtype=torch.int32), "indices_in_kvcache": 3,
               "extra_indices_in_kvcache": torch.zeros(5, dtype=torch.int32), "extra_k_cache": torch.zeros(3)}
    for name, value in refused.items():
        with pytest.raises(flashlatent.InvalidArgumentError, match=f"^{name} is "):
            decode_of(**{**edges, "k_cache": cache, "extra_k_cache": more, "use_legacy": use_legacy, name: value})
    with pytest.raises(flashlatent.InvalidArgumentError, match="unexpected keyword argument 'topk'"):
        decode_of(**edges, k_cache=cache, topk=4)
