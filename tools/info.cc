// flashlatent info
#include <fmt/core.h>

#include "flashlatent/backend.h"
#include "flashlatent/version.h"
#include "tools/command.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

namespace {

int run_info(const std::string& json_path) {
  nlohmann::ordered_json document = {{"version", FLASHLATENT_VERSION}, {"source_tree", source_tree()}};
  fmt::print("flashlatent {} (source tree {})\n", FLASHLATENT_VERSION, source_tree());
  for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
    const Status status = available(backend);
    fmt::print("\nbackend {}: {}available\n", to_string(backend), status.ok() ? "" : "not ");
    if (!status.ok()) fmt::print("  {}\n", status.message());
    auto& entry = document["backends"][to_string(backend)];
    entry["available"] = status.ok();
    if (!status.ok()) entry["reason"] = status.message();
    for (const DeviceInfo& device : devices(backend)) {
      fmt::print("  device {}: {}, {} {}{}, {}\n", device.index, device.name, device.units,
                 backend == Backend::kCpu ? "threads" : "multiprocessors",
                 device.memory > 0
                     ? fmt::format(", {:.0f} GiB", static_cast<double>(device.memory) / (1 << 30))
                     : "",
                 device.detail);
      entry["devices"].push_back({{"index", device.index},
                                  {"name", device.name},
                                  {"units", device.units},
                                  {"memory", device.memory},
                                  {"detail", device.detail}});
    }
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.backend != backend) continue;
      fmt::print("  kernel {}: {}\n", kernel.name, kernel.takes);
      entry["kernels"].push_back({{"name", kernel.name}, {"takes", kernel.takes}});
    }
  }
  if (Status status = write_json(json_path, document); !status.ok()) return fail(status);
  return kRight;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  CLI::App* info =
      app.add_subcommand("info", "Show backends, devices and kernels, and what each kernel takes");
  auto json = std::make_shared<std::string>();
  add_json_option(*info, *json);
  info->callback([&action, json] { action = [json] { return run_info(*json); }; });
}

}  // namespace flashlatent::tools
