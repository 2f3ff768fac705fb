// flashlatent costs: the table of costs by which GPU kernels are picked and calls are cut.
#include "flashlatent/costs.h"

#include <fmt/core.h>

#include "cost/table_file.h"
#include "tools/command.h"

namespace flashlatent::tools {

namespace {

int run_costs(const std::string& path) {
  if (path.empty()) {
    fmt::print("{}", costs_text("H200"));
    return kRight;
  }
  if (Status status = load_costs(path); !status.ok()) return fail(status);
  fmt::print("{}: a table of {}, {} lines\n", path, cost::newest_table()->gpu, cost::kPlaces.size());
  return kRight;
}

}  // namespace

void add_costs(CLI::App& app, Action& action) {
  CLI::App* costs = app.add_subcommand(
      "costs", "Print the built-in costs of an H200 as a file for FLASHLATENT_COSTS, or check such a file");
  auto path = std::make_shared<std::string>();
  costs->add_option("FILE", *path, "Costs to check; left out: prints the built-in ones");
  costs->callback([&action, path] { action = [path] { return run_costs(*path); }; });
}

}  // namespace flashlatent::tools
