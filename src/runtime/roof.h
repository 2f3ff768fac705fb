// What the executor's chip can do at most, measured: the roof that benchmarks are held against.
#pragma once

#include "flashlatent/backend.h"
#include "flashlatent/status.h"

namespace flashlatent::runtime {

struct Roof {
  double read_tbps = 0;      ///< Reading memory too large for any cache, 1e12 bytes a second.
  double matmul_tflops = 0;  ///< CUDA: wgmma m64n256k16, bf16. CPU: fp32 fused multiply-adds.
};

/// Takes about a second on the CPU, less on a GPU.
Result<Roof> measure_roof(const Executor& executor);

#if FLASHLATENT_WITH_CUDA
/// Enqueues one reading of `bytes` bytes by bulk copies, 192 KB in flight a multiprocessor.
Status launch_read(const void* memory, std::size_t bytes, int multiprocessors, const Executor& executor);
/// Enqueues matrix products on data from shared memory; returns their operations.
Result<double> launch_matmul(int multiprocessors, const Executor& executor);
#endif

}  // namespace flashlatent::runtime
