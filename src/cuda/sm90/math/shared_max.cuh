// The maximum of many floats, in shared memory: it takes no register, and no thread waits.
#pragma once

#include <cuda_runtime.h>

namespace flashlatent::sm90 {

/// Kept as an integer that orders as floats do; -0 is below 0.
class SharedMax {
 public:
  __device__ __forceinline__ void init() { bits_ = ordered(__float_as_int(-INFINITY)); }
  /// x must not be NaN.
  __device__ __forceinline__ void raise(float x) { atomicMax(&bits_, ordered(__float_as_int(x))); }
  __device__ __forceinline__ float get() const { return __int_as_float(ordered(bits_)); }

 private:
  __device__ __forceinline__ static int ordered(int bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }
  int bits_;
};

}  // namespace flashlatent::sm90
