// What subcommands have in common: registration, options, errors, JSON files.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/backend.h"
#include "tools/files.h"
#include "tools/tell.h"

namespace flashlatent::tools {

inline constexpr int kRight = 0;
inline constexpr int kWrongResult = 1;
inline constexpr int kWrongInput = 2;

/// Names of cache formats, each once, from `first` on: "plain", or "bf16" and "fp16" in its place.
std::vector<std::string> kv_format_names(const std::vector<std::string>& first = {"plain"});
/// An option for the place of scales, in caches of a format that leaves it open; --scale-place token or page.
void add_scale_place(CLI::App& app, std::string& place);
/// The place by that option; empty: token. Refused with a format, --kv, that has one place.
Result<ScalePlace> scale_place_of(const std::string& place, KvFormat format, const std::string& kv);

/// Set by the subcommand of the command line; returns the exit code.
using Action = std::function<int()>;

/// Each file of a subcommand defines one of these, and main.cc calls them.
void add_info(CLI::App& app, Action& action);
void add_costs(CLI::App& app, Action& action);
void add_tune(CLI::App& app, Action& action);
void add_decode(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_replay(CLI::App& app, Action& action);
void add_make_case(CLI::App& app, Action& action);
void add_make_index_case(CLI::App& app, Action& action);
/// Subcommands of `bench`.
void add_bench_dense(CLI::App& bench, Action& action);
void add_bench_sparse(CLI::App& bench, Action& action);
void add_bench_paged(CLI::App& bench, Action& action);
void add_bench_cache(CLI::App& bench, Action& action);
void add_bench_numerics(CLI::App& bench, Action& action);
void add_bench_plan(CLI::App& bench, Action& action);
void add_bench_shapes(CLI::App& bench, Action& action);
void add_bench_indexer(CLI::App& bench, Action& action);

/// The options that say where to run.
struct ExecutorOptions {
  std::string backend;
  std::optional<int> device;   // CUDA only
  std::optional<int> threads;  // CPU only
  std::string kernel;
};
void add_executor_options(CLI::App& app, ExecutorOptions& options);
/// The executor, with the default backend where none is given. Errors: it cannot run here, or an option
/// belongs to the other backend.
Result<Executor> make_executor(const ExecutorOptions& options);

void add_seed_option(CLI::App& app, std::uint64_t& seed);
/// --typical-tokens, DecodeProblem::Options::typical_tokens.
void add_typical_tokens_option(CLI::App& app, int& tokens);
/// "1e6" and "1.5e3" as "1000000" and "1500": a whole number of up to 18 digits in digits. Empty if `text` is
/// no whole number in either form.
std::optional<std::string> whole_number(std::string_view text);
/// Has all options of integers, of subcommands too, take whole numbers in both forms. Call it when all
/// options are added.
void take_whole_numbers(CLI::App& app);
/// Adds an option of integers from `least` to `most`, separated by commas; an empty item is refused.
CLI::Option* add_list_option(CLI::App& app, const std::string& flag, std::vector<int>& values, int least,
                             int most, const std::string& help);
/// kInvalidArgument if a flag that only CUDA has, such as --graph, is given on the CPU.
Status check_cuda_flag(const char* flag, bool given, const Executor& executor);

/// Accepts a number from `least` to `most`. CLI::Range takes nan for one.
CLI::Validator number_between(double least, double most);

/// Accepts some name. A script's unset variable must not pick another kernel.
CLI::Validator not_empty(const std::string& what);

/// Prints the message on stderr, in one line; returns kWrongInput.
int fail(const Status& status);

/// The command line as given, for reports.
const std::string& command_line();
void set_command_line(int argc, char** argv);

}  // namespace flashlatent::tools
