// New tensors of torch at the least host time: two of them are a third of an eager decode call.
#pragma once

#include <nanobind/nanobind.h>

#include <span>

#include "flashlatent/tensor.h"

namespace flashlatent::python {

namespace nb = nanobind;

/// A dtype of torch: a name in it ("float32"), or like's own.
struct DtypeKey {
  const char* name = nullptr;       ///< A literal. Null: like's own, which
  std::uint8_t code = 0, bits = 0;  ///< is this in DLPack.

  friend bool operator==(const DtypeKey&, const DtypeKey&) = default;
};

/// An uninitialised contiguous tensor beside `like`, a tensor on `device`.
nb::object torch_empty(nb::handle like, Device device, std::span<const std::int64_t> shape,
                       const DtypeKey& dtype);

}  // namespace flashlatent::python
