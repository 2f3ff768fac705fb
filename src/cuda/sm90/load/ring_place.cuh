// A role's place in a ring of shared memory.
#pragma once

#include <cstdint>

namespace flashlatent::sm90 {

/// A role's place in a ring of kCount.
template <int kCount>
class RingPlace {
 public:
  __device__ __forceinline__ int index() const { return index_; }
  __device__ __forceinline__ std::uint32_t parity() const { return parity_; }
  __device__ __forceinline__ void next() {
    if (++index_ == kCount) {
      index_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  int index_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace flashlatent::sm90
