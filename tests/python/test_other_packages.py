"""Arrays of JAX and CuPy, where they are installed: read in place, results of the same package."""

import numpy as np
import pytest

import flashlatent
from oracle import Case

HAS_CUDA = flashlatent.info()["backends"]["cuda"]["available"]


def check(case, arrays, asnumpy):
    out, lse = flashlatent.decode(*arrays, **case.options())
    assert type(out) is type(arrays[0]) and type(lse) is type(arrays[0])
    case.check(asnumpy(out), asnumpy(lse))
    return out, lse


def test_jax():
    jax = pytest.importorskip("jax")
    case = Case([40, 0, 3], d=320, v_dim=256)
    for device in jax.devices() + jax.devices("cpu"):
        if device.platform == "cpu" or HAS_CUDA:
            arrays = [jax.device_put(array, device) for array in case.arguments()]
            out, _ = check(case, arrays, np.asarray)
            assert out.devices() == {device}
            with pytest.raises(flashlatent.InvalidArgumentError, match="out is read-only"):
                flashlatent.decode(*arrays, out=out, **case.options())
            workspace = jax.numpy.zeros(1 << 20, "uint8", device=device)
            with pytest.raises(flashlatent.InvalidArgumentError, match="workspace is read-only"):
                flashlatent.decode(*arrays, workspace=workspace, **case.options())
            out, lse = flashlatent.Step(stateless=True).decode(*arrays, **case.options())
            case.check(np.asarray(out), np.asarray(lse))


def test_jax_bf16():
    jnp = pytest.importorskip("jax.numpy")
    case = Case([40, 0, 3], d=320, v_dim=256, dtype="bf16")
    q, kv_cache = (jnp.asarray(array).view(jnp.bfloat16) for array in case.arguments()[:2])
    rest = [jnp.asarray(array) for array in case.arguments()[2:]]
    if not HAS_CUDA and q.device.platform != "cpu":
        pytest.skip("JAX has a device that is not for us")
    out, lse = flashlatent.decode(q, kv_cache, *rest, softmax_scale=case.scale, v_dim=256)
    assert out.dtype == jnp.bfloat16
    case.check(np.asarray(out).view(np.uint16), np.asarray(lse))


def test_cupy():
    cupy = pytest.importorskip("cupy")
    if not HAS_CUDA:
        pytest.skip("needs a GPU")
    case = Case([40, 0, 3], d=320, v_dim=256)
    arrays = [cupy.asarray(array) for array in case.arguments()]
    check(case, arrays, cupy.asnumpy)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out, lse = flashlatent.decode(*arrays, **case.options())
        stream.synchronize()
        case.check(cupy.asnumpy(out), cupy.asnumpy(lse))


def test_buffers_without_a_package():
    case = Case([5, 2])
    lengths = memoryview(case.cache_seqlens)
    case.check(*flashlatent.decode(*case.arguments()[:3], lengths, **case.options()))


class Exporter:
    """A package of which nothing is known but DLPack, with version 1 or from before."""

    def __init__(self, array, version):
        self.array, self.version = array, version

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if self.version == 0 and options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**(options if self.version else {}))


@pytest.mark.parametrize("version", [0, 1])
def test_dlpack_alone(version):
    if version == 1 and int(np.__version__.split(".")[0]) < 2:
        pytest.skip("NumPy 1 exports DLPack from before version 1")
    case = Case([5, 40], tokens=2)
    exported = [Exporter(array, version) for array in case.arguments()]
    case.check(*flashlatent.decode(*exported, **case.options()))
    target = np.empty((2, 2, 4, 64), np.float16)
    out = Exporter(target, version)
    result, lse = flashlatent.decode(*exported, out=out, **case.options())
    assert result is out
    case.check(target, lse)
