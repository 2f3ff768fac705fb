// Random numbers as a function of (seed, index), the same on host and device.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define FLASHLATENT_HOST_DEVICE_INLINE __host__ __device__ inline
#else
#define FLASHLATENT_HOST_DEVICE_INLINE inline
#endif

namespace flashlatent::runtime {

/// SplitMix64's finaliser (Steele, Lea, Flood 2014) over seed and index.
FLASHLATENT_HOST_DEVICE_INLINE std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0xd1342543de82ef95ULL + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/// A standard normal number (Box-Muller).
FLASHLATENT_HOST_DEVICE_INLINE float random_normal(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = random_bits(seed, index);
  const float u = (static_cast<float>(bits >> 40) + 0.5F) * 0x1p-24F;
  const float v = static_cast<float>(bits & 0xFFFFFF) * 0x1p-24F;
  return sqrtf(-2.0F * logf(u)) * cosf(6.28318530718F * v);
}

}  // namespace flashlatent::runtime
