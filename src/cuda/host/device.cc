// Finds CUDA devices, and whether they can run the library's kernels.
#include <pthread.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "core/message.h"
#include "cost/device.h"
#include "cost/table_file.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/cluster_room.h"
#include "cuda/host/runtime.h"

namespace flashlatent::cuda {

namespace {

std::atomic<bool> used{false};    // a device was found in this process, or in the one that it was forked from
std::atomic<bool> forked{false};  // this process is a child made by fork after that

constexpr const char* kForked =
    "backend cuda: CUDA cannot be used in a child made by fork after its parent has used it; start the child "
    "by the spawn method (Python: multiprocessing.get_context(\"spawn\")), or use CUDA in the child alone";

/// If other code has used CUDA in the parent, only this error shows it.
bool may_be_forked(cudaError_t error) {
  return error == cudaErrorInitializationError;
}

void note_use() {
  if (used.exchange(true)) return;
  pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
}

}  // namespace

Status to_status(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  if (may_be_forked(error)) {
    return {StatusCode::kUnavailable, message(call, ": ", cudaGetErrorString(error), "; ", kForked)};
  }
  return {StatusCode::kInternal, message(call, ": ", cudaGetErrorString(error))};
}

Status usable_in_this_process() {
  if (!forked.load(std::memory_order_relaxed)) return {};
  return {StatusCode::kUnavailable, kForked};
}

namespace {

/// CUDA counts 13.0 as 13000.
std::string version(int number) {
  return message(number / 1000, ".", number % 1000 / 10);
}

struct Versions {
  int driver = 0, runtime = 0;  // 0: not installed
};

Versions versions() {
  Versions is;
  cudaDriverGetVersion(&is.driver);
  cudaRuntimeGetVersion(&is.runtime);
  return is;
}

Status too_old_driver() {
  const auto [driver, runtime] = versions();
  return {
      StatusCode::kUnavailable,
      message("backend cuda: ",
              driver == 0 ? "no NVIDIA driver was found" : "the NVIDIA driver is for CUDA " + version(driver),
              "; one for CUDA ", version(runtime), " or newer is needed, or the backend cpu")};
}

Result<int> device_count() {
  FLASHLATENT_RETURN_IF_ERROR(usable_in_this_process());
  int count = 0;
  if (cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    if (error == cudaErrorInsufficientDriver) return too_old_driver();
    if (may_be_forked(error)) return to_status(error, "cudaGetDeviceCount");
    return Status(StatusCode::kUnavailable, message("backend cuda: ", cudaGetErrorString(error)));
  }
  if (count == 0) return Status(StatusCode::kUnavailable, "backend cuda: no device");
  note_use();
  return count;
}

Result<int> attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  FLASHLATENT_RETURN_IF_ERROR(
      to_status(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute"));
  return value;
}

Result<int> read_multiprocessors(int device) {
  FLASHLATENT_ASSIGN_OR_RETURN(int count, device_count());
  if (device < 0 || device >= count) {
    return invalid_argument("device is ", device, "; there are CUDA devices 0 to ", count - 1);
  }
  FLASHLATENT_ASSIGN_OR_RETURN(int major, attribute(cudaDevAttrComputeCapabilityMajor, device));
  FLASHLATENT_ASSIGN_OR_RETURN(int minor, attribute(cudaDevAttrComputeCapabilityMinor, device));
  if (major != 9 || minor != 0) {
    return Status(StatusCode::kUnavailable, message("cuda:", device, " has compute capability ", major, ".",
                                                    minor, "; the kernels are built for 9.0 (Hopper)"));
  }
  return attribute(cudaDevAttrMultiProcessorCount, device);
}

}  // namespace

Result<int> multiprocessors(int device) {
  FLASHLATENT_RETURN_IF_ERROR(usable_in_this_process());
  constexpr int kCached = 64;
  static std::array<std::atomic<int>, kCached> cache{};
  if (device >= 0 && device < kCached) {
    if (int count = cache[device].load(std::memory_order_relaxed); count > 0) return count;
  }
  Result<int> count = read_multiprocessors(device);
  if (count.ok() && device < kCached) cache[device].store(*count, std::memory_order_relaxed);
  return count;
}

namespace {

/// A device's workers, and the name by which it may have costs of its own.
struct KnownDevice {
  schedule::Workers workers = 1;
  std::string name = {};
};

schedule::Workers read_speed(int device, int count, const cudaDeviceProp& properties) {
  if (const cost::Gpu* gpu = cost::find_gpu(properties.name)) return cost::workers_of(*gpu, count);
  const Result<int> memory_khz = attribute(cudaDevAttrMemoryClockRate, device);
  const Result<int> bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
  const Result<int> khz = attribute(cudaDevAttrClockRate, device);
  // Some drivers do not report a value: then the H200's is taken.
  const auto known = [](const Result<int>& value) { return value.ok() && *value > 0; };
  if (!known(memory_khz) || !known(bus_bits) || !known(khz)) return count;
  return cost::workers_of(cost::gpu_from_driver(count, *memory_khz / 1000.0, *bus_bits, *khz / 1000), count);
}

}  // namespace

namespace {

KnownDevice read_device(int device, int count) {
  KnownDevice known{.workers = count};
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
    known = {read_speed(device, count, properties), properties.name};
  }
  known.workers.room = cluster_room(device);
  return known;
}

/// A device may be known before costs are set, but not called.
schedule::Workers with_costs(const KnownDevice& device) {
  schedule::Workers workers = device.workers;
  workers.costs = cost::table_for_calls(device.name);
  return workers;
}

}  // namespace

Result<schedule::Workers> workers(int device) {
  FLASHLATENT_ASSIGN_OR_RETURN(const int count, multiprocessors(device));
  FLASHLATENT_RETURN_IF_ERROR(cost::load_from_environment());
  constexpr int kCached = 64;
  if (device >= kCached) return with_costs(read_device(device, count));
  static std::array<std::once_flag, kCached> flags;
  static std::array<std::optional<KnownDevice>, kCached> cache;
  std::call_once(flags[device], [&] { cache[device] = read_device(device, count); });
  return with_costs(*cache[device]);
}

Status available() {
  FLASHLATENT_ASSIGN_OR_RETURN(int count, device_count());
  Status first;
  for (int device = 0; device < count; ++device) {
    Result<int> units = multiprocessors(device);
    if (units.ok()) return {};
    if (device == 0) first = units.status();
  }
  return first;
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> list;
  Result<int> count = device_count();
  if (!count.ok()) return list;
  const auto [driver, runtime] = versions();
  for (int device = 0; device < *count; ++device) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    list.push_back({Backend::kCuda, device, properties.name, properties.multiProcessorCount,
                    properties.totalGlobalMem,
                    message("compute capability ", properties.major, ".", properties.minor, ", driver CUDA ",
                            version(driver), ", runtime CUDA ", version(runtime))});
  }
  return list;
}

}  // namespace flashlatent::cuda
