// What the cost model knows of a GPU: by its name, or by what its driver says.
#pragma once

#include <string>
#include <string_view>

#include "plan/workers.h"

namespace flashlatent::cost {

struct Gpu {
  std::string_view name;  ///< How the driver's name begins, without "NVIDIA ".
  int multiprocessors;
  double read_tbps;     ///< TB/s that reading memory reaches.
  int clock_mhz;        ///< The highest clock, MHz.
  double products = 1;  ///< Clocks of a matrix product over those on an H200.
};
std::string to_string(const Gpu& gpu);

/// The GPUs with known values. If several names fit, the first one counts. read_tbps is measured on H200 and
/// H100 (`roof` of bench/results); for the others it is 0.93 of the memory's bandwidth.
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

/// Is this the driver's name of a GPU, with or without "NVIDIA ", that begins with `known`, a whole word?
bool is_gpu(std::string_view name, std::string_view known);
/// The GPU of this name, such as "NVIDIA H100 80GB HBM3" or "H100"; null if the name is not known.
const Gpu* find_gpu(std::string_view name);
/// A GPU whose name is not known, from its driver's clocks (MHz) and bus width (bits).
Gpu gpu_from_driver(int multiprocessors, double memory_clock_mhz, double bus_bits, int clock_mhz);

/// `multiprocessors` of this GPU as workers, with the costs that were set for it (table_file.h). In a MIG
/// slice each multiprocessor has the same share of memory.
schedule::Workers workers_of(const Gpu& gpu, int multiprocessors);
inline schedule::Workers workers_of(const Gpu& gpu) {
  return workers_of(gpu, gpu.multiprocessors);
}

/// The same workers in a call that reads `bytes` of the cache: bytes that fit into L2 do not wait for memory.
schedule::Workers reading(schedule::Workers workers, double bytes);

}  // namespace flashlatent::cost
