#include "runtime/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>

#include "core/message.h"
#include "core/return_if_error.h"

namespace flashlatent::runtime {

namespace {

std::string gib(double bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f GiB", bytes * 0x1p-30);
  return text.data();
}

Status check(double bytes, double there, std::string_view what, std::string_view where) {
  if (bytes <= there) return {};
  return {StatusCode::kExhausted,
          message(what, " needs ", gib(bytes), " of memory; ", where, " has ", gib(there))};
}

}  // namespace

double host_memory() {
  double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  // cgroup version 2, then version 1. "max", or a number beyond all memory, means no limit.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    double limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

Status check_host_memory(double bytes, std::string_view what) {
  return check(bytes, host_memory(), what, "this machine");
}

Status check_memory(double bytes, std::string_view what, const Executor& executor) {
  if (executor.backend == Backend::kCpu) return check_host_memory(bytes, what);
  for (const DeviceInfo& device : devices(executor.backend)) {
    if (device.index != executor.device) continue;
    return check(bytes, static_cast<double>(device.memory), what, message("cuda:", device.index));
  }
  return {};
}

}  // namespace flashlatent::runtime
