// Maxima.
#pragma once

namespace flashlatent::ptx {

/// The larger one; NaN if either is.
__device__ __forceinline__ float max_with_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

}  // namespace flashlatent::ptx
