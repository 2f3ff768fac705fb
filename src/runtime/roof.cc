#include "runtime/roof.h"

#include "core/message.h"
#include "runtime/bench_input.h"
#include "runtime/cpu_roof.h"
#include "runtime/device_memory.h"
#include "runtime/timing.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace flashlatent::runtime {

namespace {

#if FLASHLATENT_WITH_CUDA
constexpr std::size_t kReadBytes = std::size_t{4} << 30;

Result<Roof> measure_cuda_roof(const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(int units, cuda::multiprocessors(executor.device));
  FLASHLATENT_ASSIGN_OR_RETURN(Buffer memory, Buffer::allocate(executor, kReadBytes));
  FLASHLATENT_RETURN_IF_ERROR(fill(memory.data(), 0x5A, kReadBytes, executor));
  const TimingOptions options{.repeats = 9};
  Result<Timing> read =
      time_calls([&] { return launch_read(memory.data(), kReadBytes, units, executor); }, options, executor);
  if (!read.ok()) return read.status();
  double operations = 0;
  Result<Timing> matmul = time_calls(
      [&]() -> Status {
        Result<double> launched = launch_matmul(units, executor);
        if (launched.ok()) operations = *launched;
        return launched.status();
      },
      options, executor);
  if (!matmul.ok()) return matmul.status();
  return Roof{kReadBytes / read->median * 1e-9, operations / matmul->median * 1e-9};
}
#endif

}  // namespace

Result<Roof> measure_roof(const Executor& executor) {
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) return measure_cuda_roof(executor);
#endif
  FLASHLATENT_ASSIGN_OR_RETURN(CpuRoof roof, measure_cpu_roof(executor.threads));
  return Roof{roof.read_gbps * 1e-3, roof.fma_gflops * 1e-3};
}

}  // namespace flashlatent::runtime
