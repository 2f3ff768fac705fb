// flashlatent bench: the benchmarks, one subcommand each.
#include <array>

#include "tools/command.h"

namespace flashlatent::tools {

namespace {

// Each benchmark in its own file.
constexpr std::array<void (*)(CLI::App&, Action&), 0> kBenchmarks = {};

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* bench = app.add_subcommand("bench", "Time kernels beside the machine's own limits");
  bench->require_subcommand(1);
  for (auto* add : kBenchmarks) add(*bench, action);
}

}  // namespace flashlatent::tools
