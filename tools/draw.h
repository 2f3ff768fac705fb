// Random numbers of a case: they depend on a seed and the case's number.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace flashlatent::tools {

/// Not the standard library's distributions, which differ between implementations: a seed must give the same
/// cases everywhere.
class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t number) : engine_(seed * 0x9E3779B97F4A7C15 + number) {}

  /// low to high, all equally likely.
  int from(int low, int high) {
    return low + static_cast<int>(engine_() % (static_cast<std::uint64_t>(high - low) + 1));
  }
  bool one_in(int n) { return from(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[from(0, static_cast<int>(values.size()) - 1)];
  }
  /// low to high, all orders of magnitude equally likely.
  int of_any_size(int low, int high) {
    int most = high;
    while (most / 2 > low && !one_in(3)) most /= 2;
    return from(low, most);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace flashlatent::tools
