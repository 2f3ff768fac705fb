// What this machine's processor can do at most, measured: the roof that CPU benchmarks are held against.
#pragma once

#include "flashlatent/status.h"

namespace flashlatent::runtime {

struct CpuRoof {
  int threads = 0;
  double fma_gflops = 0;  ///< fp32 fused multiply-adds out of registers, 2 flops each, 1e9 a second.
  double read_gbps = 0;   ///< Reading memory too large for any cache, 1e9 bytes a second.
};

/// Measures both on `threads` threads (0: all that OpenMP offers), the best of several tries; takes about a
/// second. kExhausted if there is no memory for the reading (256 MiB).
Result<CpuRoof> measure_cpu_roof(int threads);

}  // namespace flashlatent::runtime
