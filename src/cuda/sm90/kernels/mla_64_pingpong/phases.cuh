// What the computing warpgroups wait for.
#pragma once

#include <cstdint>

namespace flashlatent::mla_64_pingpong {

/// What the warpgroups hand over: P of the even block, and P of the odd block in two halves.
enum HandOver { kEven = 0, kOddFirst = 1, kOddSecond = 2 };

/// Parities of the phases that a warpgroup waits for, in one register.
enum Phase { kBlock, kTurn, kHandOver, kSecondHalf, kQuery, kMeeting };
class Parities {
 public:
  __device__ __forceinline__ std::uint32_t operator[](Phase phase) const { return bits_ >> phase & 1; }
  /// Returns this phase's parity; afterwards the next phase is meant.
  __device__ __forceinline__ std::uint32_t next(Phase phase) {
    const std::uint32_t parity = (*this)[phase];
    bits_ ^= 1U << phase;
    return parity;
  }

 private:
  std::uint32_t bits_ = 0;
};

}  // namespace flashlatent::mla_64_pingpong
