// GPUs as the model of costs knows them: by name, or by what their driver says.
#pragma once

#include <string>
#include <string_view>

#include "plan/workers.h"

namespace flashlatent::cost {

struct Gpu {
  std::string_view name;  ///< How the driver's name of it begins, without "NVIDIA ".
  int multiprocessors;
  double read_tbps;     ///< What reading memory reaches.
  int clock_mhz;        ///< The most.
  double products = 1;  ///< Clocks of a matrix product beside an H200's.
};
std::string to_string(const Gpu& gpu);

/// Those with known values. Of two names that fit, the first counts. Reading is measured on H200 and H100
/// (`roof` of bench/results), of others 0.93 of what the memory has.
inline constexpr Gpu kGpus[] = {
    {"H200 NVL", 132, 4.5, 1785},
    {"H200", 132, 4.68, 1980},
    {"H100 PCIe", 114, 1.90, 1755},
    {"H100 NVL", 132, 3.66, 1785},
    {"H100", 132, 3.09, 1980},
    {"H800 PCIe", 114, 1.90, 1755},
    {"H800 NVL", 132, 3.66, 1785},
    {"H800", 132, 3.09, 1980},
    {"H20-3e", 78, 4.5, 1980, 4},
    {"H20", 78, 3.72, 1980, 4},
    {"GH200 144G HBM3e", 132, 4.5, 1980},
    {"GH200", 132, 3.72, 1980},
};

/// The GPU of this name, "NVIDIA H100 80GB HBM3" or "H100"; null if it is not known.
const Gpu* find_gpu(std::string_view name);
/// One that is not known, by its driver.
Gpu gpu_from_driver(int multiprocessors, double memory_clock_mhz, double bus_bits, int clock_mhz);

/// So many multiprocessors of it; of a slice (MIG) each has the same share of memory.
schedule::Workers workers_of(const Gpu& gpu, int multiprocessors);
inline schedule::Workers workers_of(const Gpu& gpu) {
  return workers_of(gpu, gpu.multiprocessors);
}

/// The same in a call that reads so many bytes of the cache: what L2 has room for does not wait for memory.
schedule::Workers reading(schedule::Workers workers, double bytes);

}  // namespace flashlatent::cost
