"""New arrays of the caller's own package, on the device of an array of the caller's. (torch's: torch_empty.cc.)"""

import sys

from ._errors import InvalidArgumentError


def empty_like(like, shape, dtype=None):
    """An uninitialised array of like's package, on its device; like's dtype, or "float32", "uint8", ... ("bfloat16" is
    uint16, its bits, where the package has no bfloat16)."""
    package = type(like).__module__.partition(".")[0]
    if hasattr(type(like), "new_empty"):  # torch before 2.10
        torch = sys.modules["torch"]
        return like.new_empty(shape, dtype=like.dtype if dtype is None else getattr(torch, dtype))
    if dtype == "bfloat16" and package not in ("jax", "jaxlib"):
        dtype = "uint16"
    if package == "cupy":
        cupy = sys.modules["cupy"]
        with like.device:
            return cupy.empty(shape, like.dtype if dtype is None else dtype)
    if package in ("jax", "jaxlib"):
        import jax.numpy

        array = jax.numpy.empty(shape, like.dtype if dtype is None else dtype, device=like.sharding)
        return array.block_until_ready()  # its memory is written from outside of JAX
    import numpy

    has_dlpack = hasattr(like, "__dlpack_device__")
    if has_dlpack and like.__dlpack_device__()[0] != 1:
        raise InvalidArgumentError(
            f"q is a {type(like).__module__}.{type(like).__name__}, of a package whose allocator is not known here; "
            "out=, lse= and workspace= are expected")
    if dtype is None:
        dtype = (numpy.from_dlpack if has_dlpack and not isinstance(like, numpy.ndarray) else numpy.asarray)(like).dtype
    return numpy.empty(shape, dtype)
