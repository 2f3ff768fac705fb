// New tensors of torch at the least host time: two of them are a third of an eager decode call.
#pragma once

#include <nanobind/nanobind.h>

#include <span>

#include "flashlatent/tensor.h"

namespace flashlatent::python {

namespace nb = nanobind;

/// An uninitialised contiguous tensor beside `like`, a tensor on `device`. `dtype` is like's own if null,
/// else a name in torch ("float32").
nb::object torch_empty(nb::handle like, Device device, std::span<const std::int64_t> shape,
                       const char* dtype);

}  // namespace flashlatent::python
