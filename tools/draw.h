// What a random case draws from: a seed and the case's number.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace flashlatent::tools {

/// No distribution of the standard library, which may draw otherwise elsewhere: a seed is a case everywhere.
class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t number) : engine_(seed * 0x9E3779B97F4A7C15 + number) {}

  /// From low to high.
  int from(int low, int high) {
    return low + static_cast<int>(engine_() % (static_cast<std::uint64_t>(high - low) + 1));
  }
  bool one_in(int n) { return from(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[from(0, static_cast<int>(values.size()) - 1)];
  }
  /// From low to high, as likely of each order of magnitude.
  int of_any_size(int low, int high) {
    int most = high;
    while (most / 2 > low && !one_in(3)) most /= 2;
    return from(low, most);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace flashlatent::tools
