#include "dispatch/select.h"

#include "core/message.h"
#include "cpu/cpu_backend.h"
#include "plan/host_plan.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace flashlatent {

namespace {

Result<int> workers_of(const Executor& executor) {
  if (executor.backend == Backend::kCpu) {
    return executor.threads > 0 ? executor.threads : cpu::hardware_threads();
  }
#if FLASHLATENT_WITH_CUDA
  return cuda::multiprocessors(executor.device);
#else
  return available(executor.backend);
#endif
}

/// Empty if the kernel takes the problem on this executor, else why not.
std::string reason_to_decline(const DecodeKernel& kernel, const DecodeProblem& problem,
                              const Executor& executor) {
  if (!executor.kernel.empty() && executor.kernel != kernel.name) return "another kernel was asked for";
  // The oracle is a thousand times too slow to be picked by accident.
  if (&kernel == &decode_kernels().back() && executor.kernel.empty())
    return "runs only when asked for by name";
  return kernel.declines(problem).value_or("");
}

}  // namespace

Device device_of(const Executor& executor) {
  if (executor.backend == Backend::kCpu) return {};
  return {DeviceType::kCuda, executor.device};
}

Status validate(const Executor& executor) {
  if (executor.threads < 0) return invalid_argument("threads is ", executor.threads, "; 0 means all");
  FLASHLATENT_RETURN_IF_ERROR(available(executor.backend));
  std::string names;
  for (const DecodeKernel& kernel : decode_kernels()) {
    if (kernel.backend != executor.backend) continue;
    if (executor.kernel.empty() || executor.kernel == kernel.name) return {};
    names += message(names.empty() ? "" : ", ", kernel.name);
  }
  return unsupported("kernel is '", executor.kernel, "'; ", to_string(executor.backend), " has ", names);
}

Result<Selection> select(const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(problem));
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  Result<int> workers = workers_of(executor);
  if (!workers.ok()) return workers.status();
  std::string reasons;
  for (const DecodeKernel& kernel : decode_kernels()) {
    if (kernel.backend != executor.backend) continue;
    const std::string reason = reason_to_decline(kernel, problem, executor);
    if (reason.empty()) {
      Selection selection{&kernel, kernel.geometry(problem, *workers)};
      FLASHLATENT_RETURN_IF_ERROR(schedule::validate(selection.geometry));
      return selection;
    }
    reasons += message("; ", kernel.name, ": ", reason);
  }
  return unsupported("no ", to_string(executor.backend), " kernel takes ", to_string(problem), reasons);
}

Result<std::string> picked_kernel(const DecodeProblem& problem, const Executor& executor) {
  Result<Selection> selection = select(problem, executor);
  if (!selection.ok()) return selection.status();
  return std::string(selection->kernel->name);
}

Result<std::string> explain(const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(problem));
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  std::string text;
  bool picked = false;
  for (const DecodeKernel& kernel : decode_kernels()) {
    if (kernel.backend != executor.backend) continue;
    std::string reason = reason_to_decline(kernel, problem, executor);
    if (reason.empty()) reason = picked ? "takes it, but comes later" : "picked";
    picked = picked || reason == "picked";
    text += message(kernel.name, ": ", reason, "\n");
  }
  return text;
}

}  // namespace flashlatent
