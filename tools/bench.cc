// flashlatent bench: the benchmarks, one subcommand each.
#include "tools/command.h"

namespace flashlatent::tools {

namespace {

// Each benchmark has a file of its own.
constexpr void (*kBenchmarks[])(CLI::App&, Action&) = {add_bench_dense,  add_bench_sparse,   add_bench_paged,
                                                       add_bench_cache,  add_bench_numerics, add_bench_plan,
                                                       add_bench_shapes, add_bench_indexer};

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* bench = app.add_subcommand("bench", "Time kernels beside the machine's own limits");
  bench->require_subcommand(1);
  for (auto* add : kBenchmarks) add(*bench, action);
}

}  // namespace flashlatent::tools
