#include "flashlatent/backend.h"

#include "choose/cutters.h"
#include "core/enum_names.h"
#include "core/environment.h"
#include "core/message.h"
#include "cpu/parallel.h"
#include "dispatch/on_backend.h"

namespace flashlatent {

namespace {

constexpr EnumName<Backend> kBackends[] = {{Backend::kCpu, "cpu"}, {Backend::kCuda, "cuda"}};

}  // namespace

const char* to_string(Backend backend) {
  return name_of(kBackends, backend);
}
Result<Backend> backend_from_name(std::string_view name) {
  return value_of(kBackends, name, "backend", "cpu and cuda");
}

Status available(Backend backend) {
  if (backend == Backend::kCpu) return {};
#if FLASHLATENT_WITH_CUDA
  return cuda::available();
#else
  return {StatusCode::kUnavailable, "backend cuda is not in this build; " FLASHLATENT_CUDA_ADVICE};
#endif
}

Result<Backend> default_backend() {
  if (const std::string_view forced = environment::backend(); !forced.empty()) {
    Result<Backend> backend = backend_from_name(forced);
    if (!backend.ok()) return invalid_argument("FLASHLATENT_BACKEND: ", backend.status().message());
    return backend;
  }
  return available(Backend::kCuda).ok() ? Backend::kCuda : Backend::kCpu;
}

std::vector<DeviceInfo> devices(Backend backend) {
  if (backend == Backend::kCpu) {
    return {{Backend::kCpu, 0, cpu::simd_target(), cpu::hardware_threads(), 0, "OpenMP threads"}};
  }
#if FLASHLATENT_WITH_CUDA
  return cuda::devices();
#else
  return {};
#endif
}

std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> list;
  for (const choose::Cutter* cutter : choose::cutters()) {
    const DecodeKernel& kernel = cutter->kernel;
    if (kernel.launch != nullptr) list.push_back({kernel.name, kernel.backend(), kernel.takes});
  }
  return list;
}

}  // namespace flashlatent
