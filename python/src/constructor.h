// Constructors whose refused arguments are explained like those of functions (checked_call.cc).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

namespace flashlatent::python {

namespace nb = nanobind;

/// What `__init__` is declared as, by the signature of `maker`, which returns what it makes.
inline std::string signature_of_constructor(nb::handle maker) {
  const nb::tuple entry = nb::cast<nb::tuple>(nb::object(maker.attr("__nb_signature__")[0]));
  std::string text = nb::cast<std::string>(nb::object(entry[0]));
  text = text.substr(text.find('(') + 1);
  text.erase(text.rfind(')'));
  if (!entry[2].is_none()) {  // "\\0", "\\1", ... stand for defaults
    const nb::tuple defaults = nb::cast<nb::tuple>(nb::object(entry[2]));
    for (std::size_t i = nb::len(defaults); i-- > 0;) {
      std::string value = nb::cast<std::string>(nb::repr(defaults[i]));
      if (value == "-inf") value = "float('-inf')";
      const std::string place = "\\" + std::to_string(i);
      text.replace(text.find(place), place.size(), value);
    }
  }
  constexpr std::string_view kTwice = " | None | None";  // an optional type that is also called .none()
  for (std::size_t at = 0; (at = text.find(kTwice, at)) != text.npos;) text.erase(at, kTwice.size() / 2);
  constexpr std::string_view kModule = "flashlatent._native.";
  for (const std::string_view module : {kModule, kModule.substr(kModule.find('_'))}) {
    for (std::size_t at = 0; (at = text.find(module, at)) != text.npos;) text.erase(at, module.size());
  }
  return "def __init__(self, " + text + ") -> None";
}

/// T's constructor: `maker`, a function of flashlatent._native of the same arguments that returns a T.
template <class T>
void define_constructor(nb::class_<T>& type, nb::module_& module, const char* maker) {
  const std::string signature = signature_of_constructor(module.attr(maker));
  type.def(
      "__init__",
      [maker](T* self, const nb::args& arguments, const nb::kwargs& options) {
        const nb::object made =
            nb::module_::import_("flashlatent._native").attr(maker)(*arguments, **options);
        new (self) T(std::move(*nb::cast<T*>(made)));
      },
      nb::sig(signature.c_str()));
}

}  // namespace flashlatent::python
