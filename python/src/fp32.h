// Numbers of Python as float arguments: a double that fp32 turns into 0 or infinity is refused. norm=1e-60
// would be no norm. flashlatent._arguments says so by name.
#pragma once

#include <nanobind/nanobind.h>

#include <cmath>
#include <cstdint>

namespace flashlatent::python {

/// Is `given` 0 or infinity in fp32, and neither as a double?
inline bool is_lost_in_fp32(double given) {
  const auto kept = static_cast<float>(given);
  return (kept == 0 && given != 0) || (std::isinf(kept) && !std::isinf(given));
}

}  // namespace flashlatent::python

namespace nanobind::detail {

/// In place of nanobind's for float, in every binding that includes bindings.h or arguments.h.
template <>
struct type_caster<float> {
  NB_TYPE_CASTER(float, const_name("float"))

  bool from_python(handle source, std::uint32_t /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    const double given = PyFloat_AsDouble(source.ptr());
    if (given == -1.0 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return false;
    }
    value = static_cast<float>(given);
    return !flashlatent::python::is_lost_in_fp32(given);
  }

  static handle from_cpp(float value, rv_policy /*policy*/, cleanup_list* /*cleanup*/) noexcept {
    return PyFloat_FromDouble(value);
  }
};

}  // namespace nanobind::detail
