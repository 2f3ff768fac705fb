// Cases. The input is a safetensors header, a line end, and the data: with the header's length filled in
// here, most inputs get as far as the checks of a case.
#include <cstdint>
#include <string>
#include <string_view>

#include "check.h"
#include "io/case.h"
#include "mutate.h"

using namespace flashlatent;
using namespace flashlatent::io;

// Half plain mutations; a quarter numbers of the header; a quarter bytes of the data, which are mostly
// lengths.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  std::minstd_rand random(seed);
  const auto choice = random() % 4;
  const auto header = static_cast<std::size_t>(std::find(data, data + size, '\n') - data);
  if (choice == 0) return mutate_number(data, size, max_size, header, random);
  if (choice == 1 && header + 1 < size) {
    static constexpr std::array<std::uint8_t, 6> kBytes = {0, 1, 2, 0x7F, 0x80, 0xFF};
    data[header + 1 + random() % (size - header - 1)] = kBytes[random() % kBytes.size()];
    return size;
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view header = input.substr(0, input.find('\n'));
  std::string bytes;
  for (int i = 0; i < 8; ++i)
    bytes += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  bytes += header;
  if (header.size() < input.size()) bytes += input.substr(header.size() + 1);

  const auto loaded = parse_case(bytes, kInputName);
  if (!loaded.ok()) {
    check_error(loaded.status());
    return 0;
  }
  check_tensors_readable(loaded->file);
  const auto problem = loaded->problem();
  if (!problem.ok()) {
    check_error(problem.status());
    return 0;
  }
  check(validate(*problem).ok());
  const DecodeInputs inputs = loaded->inputs();
  const bool sparse = problem->sparse.enabled;
  const std::int64_t capacity =
      sparse ? problem->sparse.topk
             : static_cast<std::int64_t>(problem->cache.max_pages) * problem->cache.page_size;
  const ConstTensorView& lengths = sparse ? inputs.topk_length : inputs.cache_seqlens;
  for (int i = 0; lengths.present() && i < problem->query.batch; ++i) {
    const std::int32_t length = static_cast<const std::int32_t*>(lengths.data)[i];
    check(length >= 0 && length <= capacity);
  }
  return 0;
}
