#include "python/src/torch_empty.h"

#include <algorithm>
#include <string>

#if FLASHLATENT_WITH_CUDA
#include "cuda/common/runtime.h"
#endif

namespace flashlatent::python {

namespace {

/// What this needs of torch, which is imported by now. Never freed: torch may be gone before.
struct Torch {
  nb::object module = nb::module_::import_("torch");
  nb::object tensor = module.attr("Tensor");
  // The functions that torch.compile's code allocates with: they take a third of new_empty()'s time.
  nb::object empty_cpu, empty_cuda;

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

}  // namespace

nb::object torch_empty(nb::handle like, Device device, std::span<const std::int64_t> shape,
                       const char* dtype) {
  static const Torch& torch = *new Torch;
  const nb::object extents = tuple_of(shape);
  const nb::object type = dtype == nullptr ? nb::object(like.attr("dtype")) : torch.module.attr(dtype);
  const nb::object& fast = device.type == DeviceType::kCpu ? torch.empty_cpu : torch.empty_cuda;
  // A subclass decides itself what is new.
  const bool plain = like.type().is(torch.tensor);
  if (fast.is_none() || !plain || (device.type == DeviceType::kCuda && !is_current(device))) {
    return like.attr("new_empty")(extents, nb::arg("dtype") = type);
  }
  std::int64_t strides[kMaxRank] = {};
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= std::max<std::int64_t>(shape[i], 1))
    strides[i] = stride;
  return fast(extents, tuple_of({strides, shape.size()}), type);
}

}  // namespace flashlatent::python
