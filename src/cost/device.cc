#include "cost/device.h"

#include <algorithm>

#include "core/message.h"
#include "cost/table_file.h"

namespace flashlatent::cost {

namespace {

constexpr std::string_view kVendor = "NVIDIA ";
constexpr double kReached = 0.93;  // The share of a memory's bandwidth that reading reaches.
/// A call that is repeated finds up to kBytesInL2 of its bytes in L2, which has 50 MB. From kBytesBeyondL2 on
/// it reads memory as if there were no L2. Source: `reading alone` in bench/results/h100/drawn/file.json: 34
/// MB at 5.7 TB/s, 41 at 3.9, 46 at 3.1, 250 at 3.0.
constexpr double kBytesInL2 = 36e6, kBytesBeyondL2 = 46e6;

/// The GPU on which the table's costs were measured.
constexpr Gpu kMeasured = kGpus[1];
static_assert(kMeasured.name == "H200");

constexpr double share_of_memory(const Gpu& gpu) {
  return gpu.read_tbps / gpu.multiprocessors;
}

}  // namespace

std::string to_string(const Gpu& gpu) {
  return message(gpu.name, ": ", gpu.multiprocessors, " multiprocessors, reads ", gpu.read_tbps, " TB/s, ",
                 gpu.clock_mhz, " MHz, a product takes ", gpu.products, " times an H200's clocks");
}

bool is_gpu(std::string_view name, std::string_view known) {
  if (name.starts_with(kVendor)) name.remove_prefix(kVendor.size());
  // A prefix must end at a word: the driver's "H200" is no "H20".
  const std::string_view rest = name.substr(std::min(name.size(), known.size()));
  return name.starts_with(known) && (rest.empty() || rest[0] == ' ');
}

const Gpu* find_gpu(std::string_view name) {
  for (const Gpu& gpu : kGpus) {
    if (is_gpu(name, gpu.name)) return &gpu;
  }
  return nullptr;
}

Gpu gpu_from_driver(int multiprocessors, double memory_clock_mhz, double bus_bits, int clock_mhz) {
  // Memory transfers twice a clock.
  const double tbps = 2 * memory_clock_mhz * 1e6 * bus_bits / 8 * 1e-12;
  return {
      .name = "", .multiprocessors = multiprocessors, .read_tbps = kReached * tbps, .clock_mhz = clock_mhz};
}

schedule::Workers workers_of(const Gpu& gpu, int multiprocessors) {
  schedule::Workers workers = multiprocessors;
  workers.memory = static_cast<float>(share_of_memory(kMeasured) / share_of_memory(gpu));
  workers.clock = static_cast<float>(kMeasured.clock_mhz) / static_cast<float>(gpu.clock_mhz);
  workers.products = workers.clock * static_cast<float>(gpu.products);
  workers.costs = table_of(gpu.name);
  return workers;
}

schedule::Workers reading(schedule::Workers workers, double bytes) {
  if (workers.memory <= workers.clock) return workers;
  const double beyond = std::clamp((bytes - kBytesInL2) / (kBytesBeyondL2 - kBytesInL2), 0.0, 1.0);
  workers.memory = workers.clock + static_cast<float>(beyond) * (workers.memory - workers.clock);
  return workers;
}

}  // namespace flashlatent::cost
