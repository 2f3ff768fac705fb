// What must hold of a parser's answer to any input.
#pragma once

#include <cstdlib>
#include <string>

#include "flashlatent/status.h"

namespace flashlatent::io {

inline constexpr const char* kInputName = "input";

/// Stops the fuzzer unless `holds`.
inline void check(bool holds) {
  if (!holds) std::abort();
}

/// An error is one line of bounded length that names the file.
inline void check_error(const Status& status) {
  check(!status.ok());
  check(status.message().starts_with(std::string(kInputName) + ": "));
  check(status.message().find_first_of("\r\n") == std::string::npos);
  check(status.message().size() < 2000);
}

}  // namespace flashlatent::io
