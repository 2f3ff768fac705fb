"""What operations beside attention write has memory of its own, apart from all that they read."""

import numpy as np
import pytest

import flashlatent

CACHE = np.zeros((3, 8, 1, 576), np.float16)
TABLE = np.zeros((20, 64), np.float32)


def shared(array):
    """A view of array's shape whose first dimension steps through no memory."""
    return np.lib.stride_tricks.as_strided(array, array.shape, (0, *array.strides[1:]), writeable=True)


def inside(array, shape, dtype):
    """An array of this shape in the memory of another one."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return array.reshape(-1).view(np.uint8)[:count].view(dtype).reshape(shape)


def append(cache=None, **changed):
    cache = np.zeros_like(CACHE) if cache is None else cache
    given = {"latent": np.ones((7, 512), np.float16), "rope": np.ones((7, 64), np.float16),
             "slot_mapping": np.arange(7), "positions": np.arange(7), "table": TABLE, "norm": 1e-6,
             "norm_weight": np.ones(512, np.float32)}
    given |= {name: inside(cache, np.shape(given[name]), given[name].dtype) for name in changed.get("inside", ())}
    flashlatent.append_latent(given.pop("latent"), given.pop("rope"), given.pop("slot_mapping"), cache, **given)


@pytest.mark.parametrize("name", ["latent", "rope", "slot_mapping", "positions", "table", "norm_weight"])
def test_append_latent(name):
    with pytest.raises(flashlatent.InvalidArgumentError, match=f"kv_cache is .* overlaps {name},"):
        append(inside=[name])
    with pytest.raises(flashlatent.InvalidArgumentError, match="kv_cache is .* where elements share memory"):
        append(shared(np.zeros_like(CACHE)))


@pytest.mark.parametrize("name", ["keys", "slot_mapping", "positions", "table", "norm_weight", "norm_bias"])
def test_append_index_keys(name):
    cache = np.zeros((2, 8 * 132 + 32), np.uint8)
    given = {"keys": np.ones((7, 128), np.float16), "slot_mapping": np.arange(7), "positions": np.arange(7),
             "table": TABLE[:4], "norm_weight": np.ones(128, np.float16), "norm_bias": np.ones(128, np.float16)}
    given[name] = inside(cache, given[name].shape, given[name].dtype)
    with pytest.raises(flashlatent.InvalidArgumentError, match=f"index_cache is .* overlaps {name},"):
        flashlatent.append_index_keys(index_cache=cache, page_size=8, norm=1e-6, **given)


def index_queries(**changed):
    given = {"q": np.ones((4, 16, 128), np.float16), "weights": np.ones((4, 16), np.float32),
             "index_format": "mxfp4_68", "codes": np.zeros((4, 16, 64), np.uint8),
             "scales": np.zeros((4, 16, 4), np.uint8), "out_weights": np.zeros((4, 16), np.float32)} | changed
    return flashlatent.quantize_index_queries(given.pop("q"), given.pop("weights"), **given)


def test_quantize_index_queries():
    codes, weights = np.zeros((4, 16, 64), np.uint8), np.ones((4, 16), np.float32)
    for changed, message in [
            ({"codes": shared(codes)}, "codes is .* share memory"),
            ({"out_weights": shared(weights)}, "out_weights is .* share memory"),
            ({"codes": codes, "scales": codes[..., :4]}, "scales is .* overlaps codes"),
            ({"codes": codes, "out_weights": inside(codes, (4, 16), np.float32)}, "out_weights is .* overlaps codes"),
            ({"weights": weights, "scales": inside(weights, (4, 16, 4), np.uint8)}, "scales is .* overlaps weights"),
            ({"positions": np.zeros(4, np.int32), "table": inside(codes, (16, 64), np.float32), "codes": codes},
             "codes is .* overlaps table")]:
        with pytest.raises(flashlatent.InvalidArgumentError, match=message):
            index_queries(**changed)
    records = np.zeros((4, 16, 68), np.uint8)  # scales behind each head's data, and weights in place: apart
    expected = index_queries()
    got = index_queries(codes=records[..., :64], scales=records[..., 64:], weights=weights, out_weights=weights)
    for a, b in zip(expected, got):
        np.testing.assert_array_equal(a, b)


def test_queries_and_outputs():
    q, positions = np.ones((2, 4, 512), np.float16), np.zeros(2, np.int32)
    out = np.zeros((2, 4, 512), np.float16)
    with pytest.raises(flashlatent.InvalidArgumentError, match="out is .* share memory"):
        flashlatent.prepare_queries(q, norm=1e-6, out=shared(out))
    with pytest.raises(flashlatent.InvalidArgumentError, match="out is .* overlaps table"):
        flashlatent.prepare_queries(q, positions=positions, table=inside(out, (4, 64), np.float32), out=out)
    with pytest.raises(flashlatent.InvalidArgumentError, match="rotated is .* share memory"):
        flashlatent.finish_outputs(q, positions=positions, table=TABLE, rotated=shared(out))
    with pytest.raises(flashlatent.InvalidArgumentError, match="rotated is .* overlaps positions"):
        flashlatent.finish_outputs(q, positions=inside(out, (2,), np.int32), table=TABLE, rotated=out)


def test_gathers_and_copies():
    rows, pages = np.zeros((9, 1, 576), np.float16), np.zeros((2, 3), np.int32)
    with pytest.raises(flashlatent.InvalidArgumentError, match="out is .* share memory"):
        flashlatent.gather_cache(CACHE, pages, np.array([0, 4, 9], np.int32), out=shared(rows))
    with pytest.raises(flashlatent.InvalidArgumentError, match="out is .* overlaps block_table"):
        flashlatent.gather_cache(CACHE, inside(rows, (2, 3), np.int32), np.array([0, 4, 9], np.int32), out=rows)
    keys = np.zeros((9, 128), np.float32)
    with pytest.raises(flashlatent.InvalidArgumentError, match="out is .* share memory"):
        flashlatent.gather_index_keys(np.zeros((3, 8 * 132), np.uint8), pages, np.array([0, 4, 9], np.int32),
                                      page_size=8, out=shared(keys))
    with pytest.raises(flashlatent.InvalidArgumentError, match="to is .* share memory"):
        flashlatent.copy_pages(CACHE, shared(np.zeros_like(CACHE)), np.array([[0, 1]]))
    with pytest.raises(flashlatent.InvalidArgumentError, match="to is .* share memory"):
        flashlatent.convert_cache(CACHE.astype(np.float16), shared(np.zeros(CACHE.shape, np.float16)))
    to = np.zeros_like(CACHE)
    with pytest.raises(flashlatent.InvalidArgumentError, match="to is .* overlaps pairs"):
        flashlatent.copy_pages(CACHE, to, inside(to, (1, 2), np.int64))
