"""One FP8 type is read, float8_e4m3fn; others are refused by name, whatever package they come from."""

import numpy as np
import pytest

import flashlatent

TABLE = np.array([[0, 1]], np.int32)
LENGTHS = np.array([20], np.int32)
OTHERS = ["float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e4m3", "float8_e5m2", "float8_e5m2fnuz", "float8_e3m4",
          "float8_e8m0fnu"]


def numbers():
    rng = np.random.default_rng(0)
    return rng.standard_normal((1, 1, 2, 32)).astype(np.float16), rng.standard_normal((2, 16, 1, 32), np.float32)


def decode(q, cache, table=TABLE, lengths=LENGTHS):
    return flashlatent.decode_kv(q, cache, cache, table, lengths, softmax_scale=0.1)


def refused(name, *arguments):
    match = f"key_cache has elements of type {name};.*float8_e4m3fn"
    with pytest.raises(flashlatent.InvalidArgumentError, match=match):
        decode(*arguments)


def test_numpy():
    types = pytest.importorskip("ml_dtypes")
    q, cache = numbers()
    e4m3 = cache.astype(types.float8_e4m3fn)
    np.testing.assert_array_equal(decode(q, e4m3)[0], decode(q, e4m3.view(np.uint8))[0])


@pytest.mark.parametrize("name", OTHERS)
def test_other_numpy(name):
    types = pytest.importorskip("ml_dtypes")
    if not hasattr(types, name):
        pytest.skip(f"ml_dtypes has no {name}")
    q, cache = numbers()
    refused(name, q, np.abs(cache).astype(getattr(types, name)))


def torch_arguments(torch, cache):
    q = numbers()[0]
    return torch.from_numpy(q), cache, torch.from_numpy(TABLE), torch.from_numpy(LENGTHS)


def old_tensor(torch, tensor):
    """A tensor as torch before 2.10 has it, without DLPack's C functions."""

    class Old(torch.Tensor):
        __dlpack_c_exchange_api__ = None

    return tensor.as_subclass(Old)


def test_int8():
    """A cache that is quantised to integers is none of e4m3."""
    q, cache = numbers()
    integers = (cache * 50).astype(np.int8)
    refused("int8", q, integers)
    with pytest.raises(flashlatent.InvalidArgumentError, match="kv_cache has elements of type int8; .*uint8 and float8_e4m3fn"):
        flashlatent.decode(q[..., :1, :], integers, TABLE, LENGTHS, softmax_scale=0.1, v_dim=32)
    with pytest.raises(flashlatent.InvalidArgumentError, match="q has elements of type int8; .*uint8 and float8_e4m3fn"):
        flashlatent.decode(q.astype(np.int8), integers.view(np.uint8), TABLE, LENGTHS, softmax_scale=0.1, v_dim=32)
    with pytest.raises(flashlatent.InvalidArgumentError, match="workspace has elements of type int8; uint8 is expected"):
        flashlatent.decode_kv(q, cache.astype(np.float16), cache.astype(np.float16), TABLE, LENGTHS, softmax_scale=0.1,
                              workspace=np.zeros(512, np.int8))


@pytest.mark.parametrize("old", [False, True])
def test_torch_int8(old):
    torch = pytest.importorskip("torch")
    integers = (torch.from_numpy(numbers()[1]) * 50).to(torch.int8)
    refused("int8", *torch_arguments(torch, old_tensor(torch, integers) if old else integers))


@pytest.mark.parametrize("old", [False, True])
def test_torch(old):
    torch = pytest.importorskip("torch")
    cache = torch.from_numpy(numbers()[1]).to(torch.float8_e4m3fn)
    expected = decode(*torch_arguments(torch, cache.view(torch.uint8)))[0]
    found = decode(*torch_arguments(torch, old_tensor(torch, cache) if old else cache))[0]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_other_torch(name, old):
    torch = pytest.importorskip("torch")
    if not hasattr(torch, name):
        pytest.skip(f"torch has no {name}")
    cache = torch.from_numpy(np.abs(numbers()[1])).to(getattr(torch, name))
    refused(name, *torch_arguments(torch, old_tensor(torch, cache) if old else cache))


@pytest.mark.parametrize("name", OTHERS)
def test_other_jax(name):
    jnp = pytest.importorskip("jax.numpy")
    if not hasattr(jnp, name):
        pytest.skip(f"JAX has no {name}")
    q, cache = numbers()
    if jnp.zeros(1).device.platform != "cpu":
        pytest.skip("JAX has a device that is not for us")
    arrays = [jnp.asarray(array) for array in (q, TABLE, LENGTHS)]
    refused(name, arrays[0], jnp.asarray(np.abs(cache)).astype(getattr(jnp, name)), *arrays[1:])
