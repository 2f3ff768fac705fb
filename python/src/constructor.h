// Constructors whose refused arguments are explained like those of functions (checked_call.cc).
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace flashlatent::python {

namespace nb = nanobind;

/// T's constructor: `maker`, a function of flashlatent._native of the same arguments that returns a T.
template <class T>
void define_constructor(nb::class_<T>& type, const char* maker, const nb::sig& signature) {
  type.def(
      "__init__",
      [maker](T* self, const nb::args& arguments, const nb::kwargs& options) {
        const nb::object made =
            nb::module_::import_("flashlatent._native").attr(maker)(*arguments, **options);
        new (self) T(std::move(*nb::cast<T*>(made)));
      },
      signature);
}

}  // namespace flashlatent::python
