#include "tools/machine.h"

#include <fmt/core.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

namespace flashlatent::tools {

namespace {

std::string trimmed(std::string text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::string host() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return trimmed(line.substr(line.find(':') + 1));
  }
  return "unknown";
}

/// One line from nvidia-smi, which knows some things that CUDA does not tell.
std::string ask_nvidia_smi(int device, const char* fields) {
  const std::string command =
      fmt::format("nvidia-smi -i {} --format=csv,noheader --query-gpu={} 2>/dev/null", device, fields);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  char line[256] = {};
  if (pipe == nullptr || std::fgets(line, sizeof(line), pipe.get()) == nullptr) return "unknown";
  return trimmed(line);
}

}  // namespace

nlohmann::ordered_json describe_machine(const Executor& executor) {
  nlohmann::ordered_json machine = {{"gpu", nullptr}, {"driver", nullptr}, {"cuda", nullptr}};
  machine["clocks"] = nullptr;
  machine["host"] = host();
  if (executor.backend != Backend::kCuda) return machine;
  for (const DeviceInfo& device : devices(Backend::kCuda)) {
    if (device.index != executor.device) continue;
    machine["gpu"] = device.name;
    // detail is "..., driver CUDA 13.0, runtime CUDA 13.0"
    const auto at = device.detail.find("driver CUDA");
    machine["cuda"] = at == std::string::npos ? device.detail : device.detail.substr(at);
  }
  machine["driver"] = ask_nvidia_smi(executor.device, "driver_version");
  machine["clocks"] = ask_nvidia_smi(executor.device, "clocks.sm,clocks.max.sm,clocks.mem,power.limit") +
                      " (SM now, SM most, memory, power limit)";
  return machine;
}

}  // namespace flashlatent::tools
