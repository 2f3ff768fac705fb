// What the subcommands share: registration, options, errors, JSON files.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "flashlatent/backend.h"

namespace flashlatent::tools {

inline constexpr int kRight = 0;
inline constexpr int kWrongResult = 1;
inline constexpr int kWrongInput = 2;

/// Set by the subcommand that the command line names; returns the exit code.
using Action = std::function<int()>;

/// Each file of a subcommand defines one of these; main.cc lists them.
void add_info(CLI::App& app, Action& action);
void add_decode(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_replay(CLI::App& app, Action& action);
void add_make_case(CLI::App& app, Action& action);
/// Below `bench`.
void add_bench_dense(CLI::App& bench, Action& action);
void add_bench_sparse(CLI::App& bench, Action& action);
void add_bench_paged(CLI::App& bench, Action& action);
void add_bench_cache(CLI::App& bench, Action& action);
void add_bench_numerics(CLI::App& bench, Action& action);
void add_bench_plan(CLI::App& bench, Action& action);

/// Where to run.
struct ExecutorOptions {
  std::string backend;
  int device = 0;
  int threads = 0;
  std::string kernel;
};
void add_executor_options(CLI::App& app, ExecutorOptions& options);
/// The executor, with the default backend where none is given; errors if it cannot run here.
Result<Executor> make_executor(const ExecutorOptions& options);

void add_seed_option(CLI::App& app, std::uint64_t& seed);
/// Of an option that names a file: can it be written now? Asked before work whose result goes there.
CLI::Validator writable_file();
void add_json_option(CLI::App& app, std::string& path);
/// Writes `document` to `path`; nothing if the path is empty.
Status write_json(const std::string& path, const nlohmann::ordered_json& document);

/// Prints the message on stderr, in one line; returns kWrongInput.
int fail(const Status& status);

/// The command line as it was given, for reports.
const std::string& command_line();
void set_command_line(int argc, char** argv);

}  // namespace flashlatent::tools
