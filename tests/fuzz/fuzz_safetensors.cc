// Any bytes as a safetensors file.
#include <cstdint>
#include <string_view>

#include "check.h"
#include "io/safetensors.h"

using namespace flashlatent;
using namespace flashlatent::io;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto file = SafetensorsFile::parse(bytes, kInputName);
  if (!file.ok()) {
    check_error(file.status());
    return 0;
  }
  std::size_t total = 0;
  for (const auto& [name, view] : file->tensors()) {
    check(view.rank >= 1 && view.rank <= kMaxRank);
    check(reinterpret_cast<std::uintptr_t>(view.data) % 64 == 0);
    const std::size_t count = static_cast<std::size_t>(view.elements()) * size_of(view.dtype);
    // Every byte of the view is there to be read.
    const auto* values = static_cast<const volatile unsigned char*>(view.data);
    for (std::size_t i = 0; i < count; ++i) (void)values[i];
    total += count;
  }
  check(total < size);
  return 0;
}
