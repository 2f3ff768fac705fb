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

[[noreturn]] void raise_class(const char* name, const std::string& text) {
  const nb::object type = nb::module_::import_("flashlatent._errors").attr(name);
  // Text of files and of other libraries may be no UTF-8.
  const nb::object message =
      nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  PyErr_SetObject(type.ptr(), message.ptr());
  throw nb::python_error();
}

}  // namespace

void raise(const Status& status) {
  raise_class(class_name(status.code()), status.message());
}

void raise_type_error(const std::string& message) {
  raise_class("ArgumentTypeError", message);
}

}  // namespace flashlatent::python
