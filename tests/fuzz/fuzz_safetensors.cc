// Any bytes as a safetensors file.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "check.h"
#include "io/safetensors.h"
#include "mutate.h"

using namespace flashlatent;
using namespace flashlatent::io;

// A third of the mutations are of numbers in the header, whose length is set right again.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  std::minstd_rand random(seed);
  if (size < 8 || random() % 3 != 0) return LLVMFuzzerMutate(data, size, max_size);
  std::uint64_t length = 0;
  std::memcpy(&length, data, 8);
  const std::size_t header = std::min<std::uint64_t>(length, size - 8);
  const std::size_t mutated = mutate_number(data + 8, size - 8, max_size - 8, header, random);
  length += mutated - (size - 8);
  std::memcpy(data, &length, 8);
  return mutated + 8;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto file = SafetensorsFile::parse(bytes, kInputName);
  if (!file.ok()) {
    check_error(file.status());
    return 0;
  }
  check(check_tensors_readable(*file) < size);
  return 0;
}
