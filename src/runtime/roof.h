// Measures what the executor's chip can do: the roof of benchmarks.
#pragma once

#include "flashlatent/backend.h"
#include "flashlatent/status.h"

namespace flashlatent::runtime {

struct Roof {
  double read_tbps = 0;      ///< Reading from memory that is larger than any cache, in 1e12 bytes/s.
  double matmul_tflops = 0;  ///< CUDA: wgmma m64n256k16, bf16. CPU: fp32 fused multiply-adds.
};

/// Measures both; takes about a second on the CPU, less on a GPU.
Result<Roof> measure_roof(const Executor& executor);

#if FLASHLATENT_WITH_CUDA
/// Enqueues one reading of `bytes` bytes by bulk copies, with 192 KB in flight a multiprocessor.
Status launch_read(const void* memory, std::size_t bytes, int multiprocessors, const Executor& executor);
/// Enqueues matrix products on data in shared memory; returns the number of operations.
Result<double> launch_matmul(int multiprocessors, const Executor& executor);
#endif

}  // namespace flashlatent::runtime
