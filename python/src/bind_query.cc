// What is there to run on: version, backends, devices, kernels; and what a problem gets.

#include <nanobind/stl/optional.h>

#include <charconv>
#include <optional>

#include "dispatch/select.h"
#include "flashlatent/backend.h"
#include "flashlatent/costs.h"
#include "flashlatent/version.h"
#include "python/src/bindings.h"
#include "python/src/check.h"
#include "python/src/errors.h"
#include "tools/source_tree.h"

namespace flashlatent::python {

namespace {

nb::dict device_entry(const DeviceInfo& device) {
  nb::dict entry;
  entry["index"] = device.index;
  entry["name"] = device.name;
  entry["units"] = device.units;
  entry["memory"] = device.memory;
  entry["detail"] = device.detail;
  return entry;
}

nb::dict backend_entry(Backend backend) {
  nb::dict entry;
  const Status status = available(backend);
  entry["available"] = status.ok();
  entry["reason"] = status.message();
  nb::list device_list;
  for (const DeviceInfo& device : devices(backend)) device_list.append(device_entry(device));
  entry["devices"] = device_list;
  nb::dict kernel_entries;
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.backend == backend) kernel_entries[kernel.name.c_str()] = kernel.takes;
  }
  entry["kernels"] = kernel_entries;
  return entry;
}

nb::dict info() {
  nb::dict backends;
  for (Backend backend : {Backend::kCpu, Backend::kCuda})
    backends[to_string(backend)] = backend_entry(backend);
  nb::dict result;
  result["version"] = FLASHLATENT_VERSION;
  result["source_tree"] = tools::source_tree();
  result["backends"] = backends;
  return result;
}

}  // namespace

Executor executor_on(Device device, int threads, const std::string& kernel) {
  if (device.type == DeviceType::kCuda && threads != 0) {
    refuse("threads is ", threads, " and the device is ", to_string(device),
           "; threads are the CPU's, leave them out");
  }
  Executor executor;
  executor.backend = device.type == DeviceType::kCpu ? Backend::kCpu : Backend::kCuda;
  executor.device = device.index;
  executor.threads = threads;
  executor.kernel = kernel;
  return executor;
}

Executor executor_on(std::string_view device, int threads, const std::string& kernel) {
  if (device == "cpu") return executor_on(Device{}, threads, kernel);
  constexpr std::string_view kCudaName = "cuda";
  if (device.starts_with(kCudaName)) {
    std::string_view rest = device.substr(kCudaName.size());
    int index = 0;
    if (rest.empty()) return executor_on(Device{DeviceType::kCuda, 0}, threads, kernel);
    const auto parsed = std::from_chars(rest.data() + 1, rest.data() + rest.size(), index);
    if (rest.front() == ':' && rest.size() > 1 && parsed.ec == std::errc() && index >= 0 &&
        parsed.ptr == rest.data() + rest.size()) {
      return executor_on(Device{DeviceType::kCuda, index}, threads, kernel);
    }
  }
  refuse("device is '", device, "'; cpu, cuda and cuda:N are accepted");
}

void check_workers(int workers) {
  if (workers < 1 || workers > 1 << 16) refuse("workers is ", workers, "; 1 to 65536 are accepted");
}

void bind_query(nb::module_& module) {
  using namespace nb::literals;
  module.attr("VERSION") = FLASHLATENT_VERSION;
  module.def("info", &info,
             R"(What there is to run on: {'version', 'source_tree' (the id of the git tree built),
'backends': {'cpu' and 'cuda': {...}}}.

A backend has 'available', 'reason' (why it is not), 'devices' and 'kernels' (name: what it takes); a device 'index',
'name', 'units' (multiprocessors or threads), 'memory' (bytes) and 'detail'.)");
  module.def(
      "load_costs", [](const std::string& path) { check(load_costs(path)); }, "path"_a,
      R"(From now on GPUs whose name begins with the file's `gpu` line are planned by its costs, in place of an H200's scaled
by bandwidth and clock.

path  a file as `flashlatent costs` prints it; only before the process first asks for a GPU, since a plan
      on the device follows from the costs it was made by

The environment variable FLASHLATENT_COSTS does the same for a process.

InvalidArgumentError: a GPU has been asked for, the file cannot be read, or a line is no line of a table; the message
says which.)");
  module.def(
      "costs_text", [](const std::string& gpu) { return costs_text(gpu); }, "gpu"_a = "H200",
      R"(The table of costs of GPUs of this name: one that was loaded, else the built-in one, of an H200. A line a kernel
and kind of call, in nanoseconds.

gpu  a GPU's name, such as "H20" or "NVIDIA H200")");
  module.def(
      "default_backend", [] { return std::string(to_string(take(default_backend()))); },
      "'cuda' where it can run, else 'cpu'; the environment variable FLASHLATENT_BACKEND overrides it.");
  module.def("_checks_every_call", &checks_every_call,
             "Does the environment variable FLASHLATENT_CHECK_INPUTS have every call checked?");
  module.def(
      "explain",
      [](const DecodeProblem& problem, const std::string& device, int threads, const std::string& kernel,
         std::optional<int> workers) {
        const Executor executor = executor_on(device, threads, kernel);
        if (!workers) return take(explain(problem, executor));
        if (threads != 0) refuse("threads is ", threads, " and workers is given; one of the two is accepted");
        check_workers(*workers);
        return explain(take(candidates(problem, executor, *workers)));
      },
      "problem"_a, nb::kw_only(), "device"_a = "cpu", "threads"_a = 0, "kernel"_a = "",
      "workers"_a = nb::none(),
      R"(Which kernel a problem gets and why no other: a string, a line a kernel.

problem  a Problem
device   'cpu', 'cuda' or 'cuda:N'
threads  CPU: 0 means all
kernel   forces one of info()'s kernels; '': the library picks
workers  multiprocessors of an H200 (132), or threads: no device is asked then, so that with device 'cuda', too, it needs
         no GPU, nor a build with CUDA
Raises UnavailableError where the device can't be used.)");
}

}  // namespace flashlatent::python
