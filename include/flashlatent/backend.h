// Backends, devices, kernels, and the executor of a call.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/problem.h"
#include "flashlatent/status.h"

namespace flashlatent {

enum class Backend {
  kCpu,   ///< Any processor; SIMD by run-time dispatch, OpenMP threads.
  kCuda,  ///< NVIDIA GPUs of compute capability 9.0 (Hopper).
};

/// The name: "cpu", "cuda".
const char* to_string(Backend backend);
/// The backend of that name. kInvalidArgument if there is none.
Result<Backend> backend_from_name(std::string_view name);

/// Where and how a call runs. Size queries, plan and decode of one step take the same executor, since the
/// device, the number of threads and the kernel decide how work is cut.
struct Executor {
  Backend backend = Backend::kCpu;
  int device = 0;          ///< CUDA: device ordinal.
  void* stream = nullptr;  ///< CUDA: cudaStream_t of `device`; calls only enqueue work on it.
  int threads = 0;         ///< CPU: number of threads, up to 4,096; 0 means all that OpenMP offers.
  /// Empty: the library picks a kernel. Otherwise the kernel of this name runs; kUnsupported if it does not
  /// take the problem, or if decode() finds that it cannot read or write the tensors.
  std::string kernel;
};

/// Can this backend run on this machine? kUnavailable if not; the message says why (not built, no driver, no
/// device, wrong chip).
Status available(Backend backend);

/// CUDA if it is available, else the CPU. The environment variable FLASHLATENT_BACKEND (cpu or cuda)
/// overrides this choice, whether that backend is available or not; kInvalidArgument if it names
/// neither.
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
  std::string takes;  ///< A sentence: which problems it takes.
};

/// All kernels of this build, of every backend.
std::vector<KernelInfo> kernels();

/// The name of the kernel that a problem gets on this executor. Errors: kInvalidArgument (a field of the
/// problem), kUnsupported (no kernel takes it), kUnavailable. For tensors that this kernel cannot read or
/// write another kernel may run: running_kernel() (decode.h) names it.
Result<std::string> picked_kernel(const DecodeProblem& problem, const Executor& executor);

/// Which kernel a problem gets on this executor, and why no other: a line for each kernel of the backend. A
/// line says "picked", "not picked", or "declines" with the reason. Where several kernels take the problem it
/// adds the estimated time for requests as long as max_pages allows. Errors as validate(problem),
/// kUnavailable.
Result<std::string> explain(const DecodeProblem& problem, const Executor& executor);

}  // namespace flashlatent
