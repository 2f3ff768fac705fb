#include "python/src/torch_empty.h"

#include <algorithm>
#include <array>
#include <string>

#if FLASHLATENT_WITH_CUDA
#include "cuda/host/runtime.h"
#endif

namespace flashlatent::python {

namespace {

/// The arguments of an allocation: shape, strides, dtype as Python has them. To make them takes as long as a
/// third of the allocation, and a layer's are the last layer's.
struct Arguments {
  int rank = -1;
  std::array<std::int64_t, kMaxRank> shape = {};
  DtypeKey dtype = {};
  nb::object extents, strides, type;

  bool fits(std::span<const std::int64_t> wanted, const DtypeKey& key) const {
    return rank == static_cast<int>(wanted.size()) && dtype == key &&
           std::equal(wanted.begin(), wanted.end(), shape.begin());
  }
};

/// What this needs of torch, which is imported by now. Never freed: torch may be gone before.
struct Torch {
  nb::object module = nb::module_::import_("torch");
  nb::object tensor = module.attr("Tensor");
  // The functions that torch.compile's code allocates with: they take a third of new_empty()'s time.
  nb::object empty_cpu, empty_cuda;
  std::array<Arguments, 8> kept;  // under the interpreter's lock, as all of this
  std::size_t next = 0;           // of `kept` to be given up

  Torch() {
    const nb::object none = nb::none();
    const nb::object compiled = nb::getattr(nb::object(module.attr("_C")), "_dynamo", none);
    const nb::object guards = compiled.is_none() ? none : nb::getattr(compiled, "guards", none);
    empty_cpu = nb::getattr(guards, "_empty_strided_cpu", none);
    empty_cuda = nb::getattr(guards, "_empty_strided_cuda", none);
  }
};

/// They allocate on the current device.
bool is_current([[maybe_unused]] Device device) {
#if FLASHLATENT_WITH_CUDA
  int current = -1;
  return cudaGetDevice(&current) == cudaSuccess && current == device.index;
#else
  return false;
#endif
}

nb::object tuple_of(std::span<const std::int64_t> numbers) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(numbers[i]));
  }
  return tuple;
}

/// A copy: an allocation may run other code of Python's, which may allocate, too.
Arguments arguments_of(Torch& torch, nb::handle like, std::span<const std::int64_t> shape,
                       const DtypeKey& dtype) {
  for (const Arguments& kept : torch.kept) {
    if (kept.fits(shape, dtype)) return kept;
  }
  Arguments made;
  made.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), made.shape.begin());
  made.dtype = dtype;
  made.extents = tuple_of(shape);
  std::int64_t strides[kMaxRank] = {};
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= std::max<std::int64_t>(shape[i], 1))
    strides[i] = stride;
  made.strides = tuple_of({strides, shape.size()});
  made.type = dtype.name == nullptr ? nb::object(like.attr("dtype")) : torch.module.attr(dtype.name);
  torch.kept[torch.next++ % torch.kept.size()] = made;
  return made;
}

}  // namespace

nb::object torch_empty(nb::handle like, Device device, std::span<const std::int64_t> shape,
                       const DtypeKey& dtype) {
  static Torch& torch = *new Torch;
  const Arguments arguments = arguments_of(torch, like, shape, dtype);
  const nb::object& fast = device.type == DeviceType::kCpu ? torch.empty_cpu : torch.empty_cuda;
  // A subclass decides itself what is new.
  const bool plain = like.type().is(torch.tensor);
  if (fast.is_none() || !plain || (device.type == DeviceType::kCuda && !is_current(device))) {
    return like.attr("new_empty")(arguments.extents, nb::arg("dtype") = arguments.type);
  }
  return fast(arguments.extents, arguments.strides, arguments.type);
}

}  // namespace flashlatent::python
