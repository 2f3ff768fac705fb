// Partial results of 16 bits merged by a thread: some neighbouring columns of a row, from any number of
// partial results, a few at a time. Weights are relative to the greatest lse so far.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::sm90 {

/// Neighbours that are read and written together.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount % 16 == 0 ? 16 : sizeof(T) * kCount) Pack {
  T values[kCount];
};

/// Loads what the previous launch may have written, past the multiprocessor's caches.
template <class T, int kCount>
__device__ __forceinline__ Pack<T, kCount> load_pack(const T* from) {
  Pack<T, kCount> pack;
  if constexpr (sizeof(pack) % sizeof(uint4) == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(pack) / sizeof(uint4)); ++i) {
      reinterpret_cast<uint4*>(&pack)[i] = __ldcg(reinterpret_cast<const uint4*>(from) + i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.values[i] = __ldcg(from + i);
  }
  return pack;
}

__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ void round_to(float* to, float x) {
  *to = x;
}
__device__ __forceinline__ void round_to(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16(x);
}
__device__ __forceinline__ void round_to(__half* to, float x) {
  *to = __float2half(x);
}

template <class Partial, int kCount>
class HalvesMerge {
 public:
  /// Partial results with lse -inf count for nothing, whatever they hold.
  template <int kParts>
  __device__ __forceinline__ void add(const Pack<Partial, kCount> (&parts)[kParts],
                                      const float (&lse)[kParts]) {
    float max = max_;
#pragma unroll
    for (float x : lse) max = fmaxf(max, x);
    const float base = max == -INFINITY ? 0 : max;
    const float before = exp2f((max_ - base) * kLog2E);
    max_ = max;
    sum_ *= before;
#pragma unroll
    for (float& value : values_) value *= before;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float weight = exp2f((lse[i] - base) * kLog2E);
      sum_ += weight;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        // Without a branch, which would make the load wait for the weight.
        const float value = weight != 0 ? to_float(parts[i].values[j]) : 0;
        values_[j] = fmaf(weight, value, values_[j]);
      }
    }
  }

  __device__ __forceinline__ float lse() const {
    return sum_ == 0 ? -INFINITY : max_ + logf(sum_);
  }
  /// The row's values, with the sink applied.
  template <class Element>
  __device__ __forceinline__ Pack<Element, kCount> merged(bool has_sink, float sink) const {
    float factor = sum_ == 0 ? 0 : 1 / sum_;
    if (has_sink && sum_ != 0) factor /= 1 + expf(sink - lse());
    Pack<Element, kCount> result;
#pragma unroll
    for (int j = 0; j < kCount; ++j) round_to(&result.values[j], values_[j] * factor);
    return result;
  }

 private:
  float max_ = -INFINITY, sum_ = 0;
  float values_[kCount] = {};
};

}  // namespace flashlatent::sm90
