// Measures what this machine's processor can do: the roof of CPU benchmarks.
#pragma once

#include "flashlatent/status.h"

namespace flashlatent::runtime {

struct CpuRoof {
  int threads = 0;
  double fma_gflops = 0;  ///< fp32 fused multiply-adds from registers, 2 operations each, in 1e9/s.
  double read_gbps = 0;   ///< Reading from memory that is larger than any cache, in 1e9 bytes/s.
};

/// Measures both on `threads` threads (0: all that OpenMP offers) and takes the best of several tries, in
/// about a second. kExhausted if there is no memory for reading (256 MiB).
Result<CpuRoof> measure_cpu_roof(int threads);

}  // namespace flashlatent::runtime
