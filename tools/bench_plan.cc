// flashlatent bench plan: times the planning of a step.
#include <fmt/core.h>

#include "core/message.h"
#include "dispatch/select.h"
#include "flashlatent/plan.h"
#include "runtime/bench_input.h"
#include "runtime/timing.h"
#include "tools/bench_case.h"
#include "tools/command.h"
#include "tools/machine.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

namespace {

struct BenchPlanOptions {
  std::vector<int> batches = {1, 16, 128, 1024, 4096};
  int heads = 128;
  int calls_per_plan = 0;
  std::string json;
  ExecutorOptions executor;
};

/// Planning needs lengths and memory, but no cache.
Result<runtime::Timing> measure(int batch, int heads, int calls_per_plan, const Executor& executor) {
  DecodeProblem problem;
  problem.query.batch = batch;
  problem.query.heads = heads;
  problem.cache.max_pages = 1 << 14;
  problem.options.softmax_scale = 1;
  problem.options.calls_per_plan = calls_per_plan;
  const std::vector<int> lengths = make_lengths("normal", batch, 8192, 0);
  FLASHLATENT_ASSIGN_OR_RETURN(const Plan plan, Plan::make(problem, executor));
  FLASHLATENT_ASSIGN_OR_RETURN(runtime::Buffer memory,
                               runtime::Buffer::allocate(executor, plan.plan_bytes()));
  FLASHLATENT_ASSIGN_OR_RETURN(runtime::Buffer device_lengths,
                               runtime::Buffer::allocate(executor, lengths.size() * sizeof(std::int32_t)));
  FLASHLATENT_RETURN_IF_ERROR(runtime::copy_to_device(device_lengths.data(), lengths.data(),
                                                      lengths.size() * sizeof(std::int32_t), executor));
  const ConstTensorView view(device_lengths.data(), Dtype::kI32, {batch}, device_of(executor));
  return runtime::time_calls([&] { return plan.schedule(view, memory.memory()); }, {.graph = true}, executor);
}

int run_bench_plan(const BenchPlanOptions& options) {
  Result<Executor> made = make_executor(options.executor);
  if (!made.ok()) return fail(made.status());
  Executor executor = *made;
  Result<runtime::Stream> stream = runtime::Stream::create(executor);
  if (!stream.ok()) return fail(stream.status());
  executor.stream = stream->get();
  fmt::print("{:>8} {:>9} {:>9} {:>9}\n", "requests", "us", "least", "most");
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (int batch : options.batches) {
    Result<runtime::Timing> timing = measure(batch, options.heads, options.calls_per_plan, executor);
    if (!timing.ok()) return fail(timing.status());
    fmt::print("{:>8} {:>9.2f} {:>9.2f} {:>9.2f}\n", batch, timing->median * 1e3, timing->least * 1e3,
               timing->most * 1e3);
    results.push_back({{"name", fmt::format("plan b{}", batch)},
                       {"b", batch},
                       {"h_q", options.heads},
                       {"calls_per_plan", options.calls_per_plan},
                       {"graph", executor.backend == Backend::kCuda},
                       {"ms", timing->median},
                       {"ms_min", timing->least},
                       {"ms_max", timing->most}});
  }
  const nlohmann::ordered_json document = {{"machine", describe_machine(executor)},
                                           {"source_tree", source_tree()},
                                           {"command", command_line()},
                                           {"results", results}};
  if (Status status = write_json(options.json, document); !status.ok()) return fail(status);
  return kRight;
}

}  // namespace

void add_bench_plan(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("plan", "The plan of a step, for varied lengths around 8,192");
  auto options = std::make_shared<BenchPlanOptions>();
  add_list_option(*command, "--batch", options->batches, 1, 1 << 20,
                  "Requests; several are separated by commas");
  command->add_option("--heads", options->heads, "h_q")->check(CLI::Range(1, 1 << 16))->capture_default_str();
  command
      ->add_option("--calls-per-plan", options->calls_per_plan,
                   "Calls that read one plan; 0: many. Few are not worth packing requests into parts")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  add_executor_options(*command, options->executor);
  add_json_option(*command, options->json);
  command->footer(
      "On CUDA a graph of up to 20 plans is replayed. Example: flashlatent bench plan --backend cuda");
  command->callback([&action, options] { action = [options] { return run_bench_plan(*options); }; });
}

}  // namespace flashlatent::tools
