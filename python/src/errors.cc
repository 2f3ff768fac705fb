#include "python/src/errors.h"

#include <nanobind/nanobind.h>

namespace flashlatent::python {

namespace nb = nanobind;

namespace {

const char* class_name(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "InvalidArgumentError";
    case StatusCode::kUnsupported:
      return "UnsupportedError";
    case StatusCode::kUnavailable:
      return "UnavailableError";
    case StatusCode::kExhausted:
      return "ExhaustedError";
    case StatusCode::kOk:
    case StatusCode::kInternal:
      break;
  }
  return "InternalError";
}

}  // namespace

void raise(const Status& status) {
  const nb::object type = nb::module_::import_("flashlatent._errors").attr(class_name(status.code()));
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw nb::python_error();
}

}  // namespace flashlatent::python
