// What must hold of a parser's answer to any input.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "flashlatent/status.h"
#include "io/safetensors.h"

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

/// Every view is of a legal rank, aligned, and backed by memory, which is read. Returns the bytes of all.
inline std::size_t check_tensors_readable(const SafetensorsFile& file) {
  std::size_t total = 0;
  for (const auto& [name, view] : file.tensors()) {
    check(view.rank >= 1 && view.rank <= kMaxRank);
    check(reinterpret_cast<std::uintptr_t>(view.data) % 64 == 0);
    const std::size_t count = static_cast<std::size_t>(view.elements()) * size_of(view.dtype);
    const auto* bytes = static_cast<const volatile unsigned char*>(view.data);
    for (std::size_t i = 0; i < count; ++i) (void)bytes[i];
    total += count;
  }
  return total;
}

}  // namespace flashlatent::io
