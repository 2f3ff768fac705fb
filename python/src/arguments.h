// Functions of Python whose arguments go into one struct: each argument is a row with its name and its
// member.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "python/src/fp32.h"

namespace flashlatent::python {

namespace nb = nanobind;

/// An argument of type T. If it is not given: the member's default in the struct, and None for objects.
template <class Struct, class T, bool kRequired = false>
struct Argument {
  const char* name;
  T Struct::*member;

  auto annotation() const {
    const nb::arg argument(name);
    if constexpr (kRequired) {
      return argument;
    } else if constexpr (std::is_base_of_v<nb::handle, T>) {
      return argument = nb::none();
    } else {
      return argument = Struct{}.*member;
    }
  }
};

template <class Struct, class T>
constexpr Argument<Struct, T> argument(const char* name, T Struct::*member) {
  return {name, member};
}

/// The same, and a call without it is refused.
template <class Struct, class T>
constexpr Argument<Struct, T, true> required(Argument<Struct, T> row) {
  return {row.name, row.member};
}

namespace detail {

template <class Struct, class... T, class Rows>
Struct gathered(const Rows& rows, T... values) {
  Struct given;
  std::apply([&](const auto&... row) { ((given.*row.member = std::move(values)), ...); }, rows);
  return given;
}

/// Calls `define` with what nanobind is to know of the arguments.
template <class Positional, class Keywords, class Define>
void annotate(const Positional& positional, const Keywords& keywords, Define&& define) {
  std::apply(
      [&](const auto&... first) {
        std::apply(
            [&](const auto&... rest) { define(first.annotation()..., nb::kw_only(), rest.annotation()...); },
            keywords);
      },
      positional);
}

}  // namespace detail

/// A method: what function(self, Struct) returns.
template <class Type, class Function, class Struct, class... P, bool... kP, class... K, bool... kK>
void def_method(nb::class_<Type>& type, const char* name, Function function,
                std::tuple<Argument<Struct, P, kP>...> positional,
                std::tuple<Argument<Struct, K, kK>...> keywords, const char* doc) {
  auto call = [function, rows = std::tuple_cat(positional, keywords)](Type& self, P... first, K... rest) {
    return function(self, detail::gathered<Struct>(rows, std::move(first)..., std::move(rest)...));
  };
  detail::annotate(positional, keywords,
                   [&](const auto&... annotations) { type.def(name, call, annotations..., doc); });
}

/// A static method: what function(Struct) returns.
template <class Type, class Function, class Struct, class... P, bool... kP, class... K, bool... kK>
void def_static_method(nb::class_<Type>& type, const char* name, Function function,
                       std::tuple<Argument<Struct, P, kP>...> positional,
                       std::tuple<Argument<Struct, K, kK>...> keywords, const char* doc) {
  auto call = [function, rows = std::tuple_cat(positional, keywords)](P... first, K... rest) {
    return function(detail::gathered<Struct>(rows, std::move(first)..., std::move(rest)...));
  };
  detail::annotate(positional, keywords,
                   [&](const auto&... annotations) { type.def_static(name, call, annotations..., doc); });
}

}  // namespace flashlatent::python
