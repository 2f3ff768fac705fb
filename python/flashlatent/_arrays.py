"""New arrays of the caller's own package, on the device of an array of the caller's. (torch's: array.cc.)"""

import sys


def empty_like(like, shape, dtype=None):
    """An uninitialised array of like's package, on its device; like's dtype, or "float32", "uint8", ... ("bfloat16"
    as its bits, uint16, where the package has none)."""
    package = type(like).__module__.partition(".")[0]
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

    device = getattr(like, "__dlpack_device__", lambda: (1, 0))()
    if device[0] != 1:
        raise TypeError(f"q is a {type(like).__module__}.{type(like).__name__}, a package whose allocator is "
                        "not known here; pass out=, lse= and workspace=")
    return numpy.empty(shape, numpy.asarray(like).dtype if dtype is None else dtype)
