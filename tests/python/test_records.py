"""Formats whose scales lie by token or by page, and those of 512 elements: written, read, and beside each other."""

import importlib

import numpy as np
import pytest

import flashlatent
from flashlatent import InvalidArgumentError

ml_dtypes = pytest.importorskip("ml_dtypes")

RECORDS = {(format["name"], format["scales"]): format for format in flashlatent._native._formats() if format["dim"] == 512}


def rows(pages, page_size, seed=1):
    x = np.random.default_rng(seed).standard_normal((pages, page_size, 1, 512), dtype=np.float32)
    return x.astype(ml_dtypes.bfloat16)


def names(format, scales):
    return {"kv_format": format} if scales is None else {"kv_format": format, "scales": scales}


def written(cache, format, scales):
    return flashlatent.convert_cache(cache, format=format, new_scales=scales)


def back(cache, format, scales):
    """The elements of a cache of bytes; NumPy gets bf16 as bits."""
    return flashlatent.convert_cache(cache, format="bf16", **names(format, scales)).view(ml_dtypes.bfloat16)


def test_bytes_are_those_of_the_definition():
    x = np.zeros((1, 2, 1, 512), dtype=ml_dtypes.bfloat16)
    x[0, 1, 0, :5] = [448, -1, 0.5, 3, 2.5]  # 448: the scale is 1, and 2^-22 where all are 0
    token = written(x, "mxfp8_528", "token")
    assert token.shape == (1, 2, 1, 528)
    assert token[0, 1, 0, :4].tolist() == [0x7E, 0xB8, 0x30, 0x44]
    assert token[0, 1, 0, 512:].tolist() == [127] + [105] * 15
    page = written(x, "mxfp8_528", "page")
    flat = np.lib.stride_tricks.as_strided(page, (1, 1056), (page.strides[0], 1))
    assert flat[0, 512:516].tolist() == [0x7E, 0xB8, 0x30, 0x44]
    assert flat[0, 1024:].tolist() == [105] * 16 + [127] + [105] * 15
    floor = flashlatent.convert_cache(x, format="mxfp8_528", new_scales="token", scale_floor="scale")
    assert floor[0, 1, 0, 512:].tolist() == [127] + [114] * 15  # 2^-13
    x[0, 1, 0, 0] = 6  # e2m1: the scale is 1
    fp4 = written(x, "nvfp4_288", "token")
    assert fp4.shape == (1, 2, 1, 288)
    assert fp4[0, 1, 0, :3].tolist() == [0xA7, 0x51, 0x04]  # 6, -1; 0.5, 3; 2.5 goes to the even 2
    assert fp4[0, 1, 0, 256:].tolist() == [0x38] + [1] * 31


@pytest.mark.parametrize("format, scales", RECORDS)
def test_decode_reads_what_is_written(format, scales):
    plain = rows(5, 4)
    cache = written(plain, format, scales)
    record = RECORDS[format, scales]
    assert (cache.dtype, cache.shape[3]) == (np.uint8, record["token_bytes"])
    seen = back(cache, format, scales)
    assert np.abs(seen.astype(np.float32) - plain.astype(np.float32)).max() < (1 if record["elements"] == "e2m1" else 0.2)
    q = rows(3, 8, seed=2).reshape(3, 1, 8, 512)
    table = np.array([[0, 1], [4, 3], [2, 2]], dtype=np.int32)
    lengths = np.array([8, 5, 0], dtype=np.int32)
    out, lse = flashlatent.decode(q, cache, table, lengths, softmax_scale=0.05, **names(format, scales))
    wanted, wanted_lse = flashlatent.decode(q, seen, table, lengths, softmax_scale=0.05)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(lse, wanted_lse)
    indices = np.array([[[0, 7, 19, -1]]] * 3, dtype=np.int32)
    sparse = flashlatent.decode(q, cache, indices=indices, softmax_scale=0.05, **names(format, scales))
    np.testing.assert_array_equal(sparse[0], flashlatent.decode(q, seen, indices=indices, softmax_scale=0.05)[0])
    problem = flashlatent.Problem(batch=3, heads=8, qk_dim=512, page_size=4, max_pages=2, softmax_scale=0.05,
                                  **names(format, scales))
    assert (problem.kv_format, problem.scales) == (format, scales)


@pytest.mark.parametrize("scales", ["token", "page"])
def test_two_formats_in_one_softmax(scales):
    window, extra = rows(4, 8), rows(6, 2, seed=3)
    caches = written(window, "mxfp8_528", scales), written(extra, "nvfp4_288", scales)
    q = rows(2, 16, seed=2).reshape(2, 1, 16, 512)
    options = {"indices": np.array([[[0, 5, 31]], [[8, 9, -1]]], dtype=np.int32), "softmax_scale": 0.05,
               "extra_indices": np.array([[[0, 11]], [[-1, 3]]], dtype=np.int32)}
    out, lse = flashlatent.decode(q, caches[0], extra_kv_cache=caches[1], extra_kv_format="nvfp4_288",
                                  **names("mxfp8_528", scales), **options)
    wanted = flashlatent.decode(q, back(caches[0], "mxfp8_528", scales),
                                extra_kv_cache=back(caches[1], "nvfp4_288", scales), **options)
    np.testing.assert_array_equal(out, wanted[0])
    # By 288 bytes it is nvfp4_288; as whole pages of bytes.
    flat = [np.lib.stride_tricks.as_strided(c, (c.shape[0], c.strides[0]), (c.strides[0], 1)) for c in caches]
    same, _ = flashlatent.decode(q, flat[0], extra_kv_cache=flat[1], page_size=8, extra_page_size=2,
                                 extra_kv_format="nvfp4_288", **names("mxfp8_528", scales), **options)
    np.testing.assert_array_equal(out, same)
    same, _ = flashlatent.decode(q, caches[0], extra_kv_cache=caches[1], **names("mxfp8_528", scales), **options)
    np.testing.assert_array_equal(out, same)
    prefill, _, _ = flashlatent.sparse_prefill(q[:, 0], caches[0], options["indices"], extra_kv_cache=caches[1],
                                               extra_indices=options["extra_indices"], softmax_scale=0.05,
                                               **names("mxfp8_528", scales))
    np.testing.assert_array_equal(out[:, 0], prefill)


@pytest.mark.parametrize("format, scales", RECORDS)
def test_append_and_gather(format, scales):
    plain = rows(3, 4)
    cache = written(np.zeros_like(plain), format, scales)
    flat = plain.reshape(12, 512)
    flashlatent.append_latent(flat[:, :448], flat[:, 448:], np.arange(12), cache, **names(format, scales))
    expected = written(plain, format, scales)
    table, ends = np.array([[2, 0]], dtype=np.int32), np.array([0, 7], dtype=np.int32)
    got = [flashlatent.gather_cache(c, table, ends, rows=7, **names(format, scales)) for c in (cache, expected)]
    np.testing.assert_array_equal(*got)
    bf16 = flashlatent.gather_cache(cache, table, ends, rows=7, format="bf16", **names(format, scales))
    whole = back(cache, format, scales)
    np.testing.assert_array_equal(bf16.view(ml_dtypes.bfloat16)[:, 0], np.concatenate([whole[2, :, 0], whole[0, :3, 0]]))


@pytest.mark.parametrize("says, options", [
    ("kv_format mxfp8_528 with scales 'token' or 'page', or fp8_528 is expected", {}),
    ("scales is missing, and kv_cache is mxfp8_528", {"kv_format": "mxfp8_528"}),
    ("scales is 'rows'; token and page are accepted", {"kv_format": "mxfp8_528", "scales": "rows"}),
    ("its last dimension is 656", {"kv_format": "fp8_656"}),
    ("whose scales have one place", {"kv_format": "fp8_528", "scales": "page"}),
    ("^kv_format is 'fp4'; plain, fp8_656", {"kv_format": "fp4"}),
])
def test_what_is_left_open_is_refused(says, options):
    cache = np.zeros((2, 4, 1, 528), dtype=np.uint8)
    q = rows(1, 8).reshape(1, 1, 8, 512)
    table, lengths = np.zeros((1, 1), dtype=np.int32), np.array([3], dtype=np.int32)
    with pytest.raises(InvalidArgumentError, match="(?s).*" + says.replace("'", ".")):
        flashlatent.decode(q, cache, table, lengths, softmax_scale=1, **options)


def test_gathered_rows_keep_their_format():
    cache = np.zeros((2, 4, 1, 528), np.uint8)
    with pytest.raises(InvalidArgumentError, match="^format is 'mxfp8_528' and kv_cache is fp8_528; the cache's format"):
        flashlatent.gather_cache(cache, np.zeros((1, 2), np.int32), np.zeros(2, np.int32), rows=0, kv_format="fp8_528",
                                 format="mxfp8_528")


@pytest.mark.parametrize("says, options", [
    ("new_scales is 'x'; token and page", {"format": "mxfp8_528", "new_scales": "x"}),
    ("new_scales is missing, and to is mxfp8_528", {"format": "mxfp8_528"}),
    ("new_scales is page, but to is fp8_528.*leave new_scales out", {"format": "fp8_528", "new_scales": "page"}),
    ("from_ is bf16 .*; its innermost stride must be 1", {"from_": rows(2, 4)[..., ::2], "format": "fp16"}),
    ("from_ is bf16 .*; expected .pages, page_size, h_kv, d", {"from_": rows(2, 4)[0], "format": "fp16"}),
])
def test_conversions_are_refused_by_the_names_of_arguments(says, options):
    arguments = {"from_": rows(2, 4)} | options
    with pytest.raises(InvalidArgumentError, match=f"^{says}"):
        flashlatent.convert_cache(arguments.pop("from_"), **arguments)
    torch = pytest.importorskip("torch")
    operators = importlib.import_module("flashlatent.torch")
    cache = torch.zeros(2, 4, 1, 512, dtype=torch.bfloat16)
    with pytest.raises(InvalidArgumentError, match="^format is ''"):
        operators.convert_cache(cache, torch.uint8, new_kv_format="")
    with pytest.raises(InvalidArgumentError, match="^kv_cache is bf16"):
        operators.convert_cache(cache[..., ::2], torch.float16)
    with pytest.raises(InvalidArgumentError, match="^source is bf16"):
        operators.copy_pages(cache[0, 0, 0], cache, torch.tensor([[0, 1]]))
