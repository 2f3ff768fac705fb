#include "tools/command.h"

#include <fmt/core.h>

#include <array>
#include <string_view>

#include "dispatch/select.h"
#include "io/file.h"

namespace flashlatent::tools {

void add_executor_options(CLI::App& app, ExecutorOptions& options) {
  app.add_option("--backend", options.backend,
                 "cpu or cuda; left out: FLASHLATENT_BACKEND if set, else cuda where it can run, else cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--device", options.device, "CUDA device")->check(CLI::Range(0, 1023));
  app.add_option("--threads", options.threads, "CPU threads; 0: all")->check(CLI::Range(0, 4096));
  app.add_option("--kernel", options.kernel, "Run this kernel or fail (see `flashlatent info`)");
}

Result<Executor> make_executor(const ExecutorOptions& options) {
  Result<Backend> backend = options.backend.empty() ? default_backend() : backend_from_name(options.backend);
  if (!backend.ok()) return backend.status();
  Executor executor;
  executor.backend = *backend;
  executor.device = options.device;
  executor.threads = options.threads;
  executor.kernel = options.kernel;
  if (Status status = validate(executor); !status.ok()) return status;
  return executor;
}

void add_seed_option(CLI::App& app, std::uint64_t& seed) {
  app.add_option("--seed", seed, "Seed of everything random")->capture_default_str();
}

CLI::Validator writable_file() {
  return {[](const std::string& path) { return io::can_write_file(path).message(); }, ""};
}

void add_json_option(CLI::App& app, std::string& path) {
  app.add_option("--json", path, "Also write the result to this file as JSON")->check(writable_file());
}

Status write_json(const std::string& path, const nlohmann::ordered_json& document) {
  if (path.empty()) return {};
  const std::string text =
      document.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::array<std::string_view, 1> pieces = {text};
  return io::write_file(path, pieces);
}

int fail(const Status& status) {
  fmt::print(stderr, "flashlatent: {}\n", status.message());
  return kWrongInput;
}

namespace {

std::string& stored_command_line() {
  static std::string line;
  return line;
}

}  // namespace

const std::string& command_line() {
  return stored_command_line();
}

void set_command_line(int argc, char** argv) {
  std::string& line = stored_command_line();
  line = "flashlatent";
  // Of paths only the last part: the report is read on other machines. Shards and dimensions are none.
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const bool is_path = argument.find_first_not_of("0123456789/") != std::string_view::npos;
    line += ' ';
    line += is_path ? argument.substr(argument.rfind('/') + 1) : argument;
  }
}

}  // namespace flashlatent::tools
