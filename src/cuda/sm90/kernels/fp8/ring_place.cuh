// A role's place in the ring of blocks.
#pragma once

#include <cstdint>

namespace flashlatent::fp8 {

/// The loader and each warpgroup have a place of their own and move it on.
template <class Config>
class RingPlace {
 public:
  __device__ __forceinline__ int slot() const { return slot_; }
  __device__ __forceinline__ std::uint32_t parity() const { return parity_; }
  __device__ __forceinline__ void next() { *this = ahead(1); }
  /// The place so many blocks on, at most kSlots.
  __device__ __forceinline__ RingPlace ahead(int blocks) const {
    RingPlace place = *this;
    place.slot_ += blocks;
    if (place.slot_ >= Config::kSlots) {
      place.slot_ -= Config::kSlots;
      place.parity_ ^= 1;
    }
    return place;
  }

 private:
  int slot_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace flashlatent::fp8
