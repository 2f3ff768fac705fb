// The names of an enum's values, as a table: one place for both directions.
#pragma once

#include <string_view>

#include "core/message.h"

namespace flashlatent {

template <class Enum>
struct EnumName {
  Enum value;
  const char* name;
};

/// `otherwise` for a value that is not in the table.
template <class Enum, std::size_t kCount>
constexpr const char* name_of(const EnumName<Enum> (&table)[kCount], Enum value,
                              const char* otherwise = "unknown") {
  for (const EnumName<Enum>& row : table) {
    if (row.value == value) return row.name;
  }
  return otherwise;
}

/// `what` and `accepted` are for the message about a name that is not in the table.
template <class Enum, std::size_t kCount>
Result<Enum> value_of(const EnumName<Enum> (&table)[kCount], std::string_view name, const char* what,
                      const char* accepted) {
  for (const EnumName<Enum>& row : table) {
    if (row.name == name) return row.value;
  }
  return invalid_argument(what, " is '", name, "'; ", accepted, " are accepted");
}

}  // namespace flashlatent
