// Where a call runs, and what is there to run it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/problem.h"
#include "flashlatent/status.h"

namespace flashlatent {

enum class Backend { kCpu, kCuda };

/// "cpu", "cuda".
const char* to_string(Backend backend);
/// The backend of that name, or kInvalidArgument.
Result<Backend> backend_from_name(std::string_view name);

/// Where and how a call runs. Plan and decode of one step take the same one.
struct Executor {
  Backend backend = Backend::kCpu;
  int device = 0;          ///< CUDA: device ordinal.
  void* stream = nullptr;  ///< CUDA: cudaStream_t; calls only enqueue work on it.
  int threads = 0;         ///< CPU: number of threads; 0 means all that OpenMP offers.
  std::string kernel;      ///< Empty: the library picks; otherwise this kernel or an error.
};

/// Can this backend run here? If not, the message says why (not built, no driver, no device, wrong chip).
Status available(Backend backend);

/// CUDA if it is available, else the CPU. The environment variable FLASHLATENT_BACKEND (cpu or cuda), the
/// only one that the library reads, overrides this choice.
Result<Backend> default_backend();

struct DeviceInfo {
  Backend backend = Backend::kCpu;
  int index = 0;
  std::string name;        ///< "NVIDIA H200", or the CPU's SIMD target.
  int units = 0;           ///< Multiprocessors, or CPU threads.
  std::size_t memory = 0;  ///< Bytes of device memory; 0 on the CPU.
  std::string detail;      ///< Driver and runtime versions, or the SIMD width.
};

/// The devices of a backend; empty where it is not available.
std::vector<DeviceInfo> devices(Backend backend);

/// One kernel of the library.
struct KernelInfo {
  std::string name;
  Backend backend = Backend::kCpu;
  std::string takes;  ///< A sentence: the problems it accepts.
};

std::vector<KernelInfo> kernels();

/// The name of the kernel that a problem gets on this executor; kUnsupported if none takes it.
Result<std::string> picked_kernel(const DecodeProblem& problem, const Executor& executor);

/// Which kernel a problem gets on this executor, and why each other one declined; one line a kernel.
Result<std::string> explain(const DecodeProblem& problem, const Executor& executor);

}  // namespace flashlatent
