// Division by a number that stays the same, done as a multiplication: an integer division takes a GPU some 20
// instructions.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace flashlatent {

/// Divides numbers from 0 to 2^31 - 1. With 2^(s - 1) < d <= 2^s the multiplier floor(2^(31 + s) / d) + 1
/// exceeds 2^(31 + s) / d by at most 1, which a numerator below 2^31 cannot carry to the next whole quotient
/// (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994).
struct Divisor {
  std::int32_t value = 1;
  std::uint32_t multiplier = (1U << 31) + 1;
  std::uint32_t shift = 31;

  FLASHLATENT_HOST_DEVICE Divisor() {}
  /// `divisor`: 1 to 2^31 - 1.
  FLASHLATENT_HOST_DEVICE explicit Divisor(std::int32_t divisor) : value(divisor) {
    std::uint32_t log = 0;
    while ((1LL << log) < divisor) ++log;
    shift = 31 + log;
    multiplier = static_cast<std::uint32_t>((1ULL << shift) / static_cast<std::uint32_t>(divisor) + 1);
  }

  FLASHLATENT_HOST_DEVICE std::int32_t quotient(std::int32_t x) const {
    return static_cast<std::int32_t>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(x)) * multiplier >>
                                     shift);
  }
  FLASHLATENT_HOST_DEVICE std::int32_t remainder(std::int32_t x) const { return x - quotient(x) * value; }
};

}  // namespace flashlatent
