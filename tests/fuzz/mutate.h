// A mutation that knows numbers: plain ones rarely hit the few digits that sizes and offsets hang on.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace flashlatent::io {

/// Replaces one decimal number of the first `header` bytes by a neighbour, an extreme or
/// another number of the text.
inline std::size_t mutate_number(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                 std::size_t header, std::minstd_rand& random) {
  static constexpr std::array<std::string_view, 10> kExtremes = {"0",
                                                                 "1",
                                                                 "-1",
                                                                 "2147483648",
                                                                 "4294967296",
                                                                 "9223372036854775807",
                                                                 "9223372036854775808",
                                                                 "18446744073709551615",
                                                                 "0.5",
                                                                 "1e9"};
  std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<std::pair<std::size_t, std::size_t>> numbers;  // Where, how many digits.
  for (std::size_t i = 0; i < header; ++i) {
    std::size_t end = i;
    while (end < header && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    if (end > i) numbers.emplace_back(i, end - i);
    i = end;
  }
  if (numbers.empty()) return LLVMFuzzerMutate(data, size, max_size);
  const auto [at, digits] = numbers[random() % numbers.size()];
  std::string number = text.substr(at, digits);
  switch (random() % 4) {
    case 0:
      number = kExtremes[random() % kExtremes.size()];
      break;
    case 1: {
      const auto [from, count] = numbers[random() % numbers.size()];
      number = text.substr(from, count);
      break;
    }
    default:
      number.back() = static_cast<char>('0' + random() % 10);
  }
  text.replace(at, digits, number);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace flashlatent::io
