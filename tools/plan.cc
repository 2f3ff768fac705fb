// flashlatent plan: the schedule of a batch, as text, SVG and JSON.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "dispatch/kernel.h"
#include "dispatch/select.h"
#include "flashlatent/plan.h"
#include "io/file.h"
#include "plan/host_plan.h"
#include "tools/bench_case.h"
#include "tools/command.h"

namespace flashlatent::tools {

namespace {

struct PlanOptions {
  std::string kernel;
  int workers = 132;
  int batch = 16;
  int mean_length = 4096;
  std::string distribution = "normal";
  std::vector<int> lengths;
  DecodeProblem problem;
  bool brief = false;
  std::string svg;
  std::string json;
};

Result<const DecodeKernel*> find_kernel(const std::string& name) {
  std::vector<std::string> names;
  for (const DecodeKernel& kernel : decode_kernels()) {
    if (name == kernel.name || name.empty()) return &kernel;
    names.emplace_back(kernel.name);
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("--kernel is '{}'; this build has {}", name, fmt::join(names, ", ")));
}

Result<PlanDescription> make_plan(const PlanOptions& options, const std::vector<int>& lengths) {
  Result<const DecodeKernel*> kernel = find_kernel(options.kernel);
  if (!kernel.ok()) return kernel.status();
  DecodeProblem problem = options.problem;
  problem.query.batch = static_cast<int>(lengths.size());
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  problem.cache.max_pages = std::max(1, (longest - 1) / problem.cache.page_size + 1);
  if (Status status = validate(problem); !status.ok()) return status;
  if (auto reason = (*kernel)->declines(problem)) {
    return Status(StatusCode::kUnsupported, fmt::format("{}: {}", (*kernel)->name, *reason));
  }
  const schedule::Geometry geometry = (*kernel)->geometry(problem, options.workers);
  if (Status status = schedule::validate(geometry); !status.ok()) return status;
  std::vector<std::max_align_t> memory(schedule::plan_bytes(geometry) / sizeof(std::max_align_t) + 1);
  schedule::build_on_host(geometry, lengths.data(), memory.data());
  return describe_plan(geometry, lengths.data(), {memory.data(), memory.size() * sizeof(std::max_align_t)},
                       (*kernel)->name);
}

nlohmann::ordered_json to_json(const PlanDescription& plan, const std::vector<int>& lengths) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const PlanPart& part : plan.parts) {
    nlohmann::ordered_json segments = nlohmann::ordered_json::array();
    for (const PlanSegment& s : part.segments) {
      segments.push_back({{"request", s.request},
                          {"round", s.round},
                          {"blocks", {s.block_begin, s.block_end}},
                          {"slot", s.slot}});
    }
    parts.push_back({{"cost", part.cost}, {"segments", segments}});
  }
  return {{"command", command_line()},
          {"kernel", plan.kernel},
          {"lengths", lengths},
          {"lanes", plan.lanes},
          {"rounds", plan.rounds},
          {"block_tokens", plan.block_tokens},
          {"cost_per_block", plan.cost_per_block},
          {"cost_per_split", plan.cost_per_split},
          {"largest", plan.largest()},
          {"ideal", plan.ideal()},
          {"imbalance", plan.imbalance()},
          {"slots", plan.slots},
          {"merges", plan.merges},
          {"parts", parts}};
}

int run_plan(const PlanOptions& options) {
  const std::vector<int> lengths = options.lengths.empty()
                                       ? make_lengths(options.distribution, options.batch,
                                                      options.mean_length, options.problem.query.tokens)
                                       : options.lengths;
  Result<PlanDescription> plan = make_plan(options, lengths);
  if (!plan.ok()) return fail(plan.status());
  const std::string text = to_string(*plan);
  // The head is three lines; a line a part follows.
  std::size_t end = 0;
  for (int line = 0; line < 3; ++line) end = text.find('\n', end) + 1;
  fmt::print("{}", options.brief ? text.substr(0, end) : text);
  if (!options.svg.empty()) {
    const std::string picture = to_svg(*plan);
    const std::array<std::string_view, 1> pieces = {picture};
    if (Status status = io::write_file(options.svg, pieces); !status.ok()) return fail(status);
  }
  if (Status status = write_json(options.json, to_json(*plan, lengths)); !status.ok()) return fail(status);
  return kRight;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App* plan = app.add_subcommand("plan", "Show a batch's schedule: parts, their load, splits");
  auto options = std::make_shared<PlanOptions>();
  options->problem.query.heads = 128;
  auto add = [&](const char* flag, int& value, const char* help, int most) {
    plan->add_option(flag, value, help)->check(CLI::Range(1, most))->capture_default_str();
  };
  plan->add_option("--kernel", options->kernel,
                   "Whose schedule (see `flashlatent info`); the first if left out");
  add("--workers", options->workers, "Multiprocessors or threads that share the work; an H200 has 132",
      1 << 16);
  add("--batch", options->batch, "Requests", 1 << 20);
  add("--tokens", options->mean_length, "Mean length, s_k", 1 << 30);
  plan->add_option("--lengths", options->distribution, "uniform, or normal with deviation s_k/2")
      ->check(CLI::IsMember({"uniform", "normal"}))
      ->capture_default_str();
  plan->add_option("--length-list", options->lengths, "Every request's length, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 30));
  add("--query-tokens", options->problem.query.tokens, "s_q", 1 << 16);
  add("--heads", options->problem.query.heads, "h_q", 1 << 16);
  add("--kv-heads", options->problem.cache.heads, "h_kv", 1 << 16);
  add("--page-size", options->problem.cache.page_size, "Tokens a page", 1 << 20);
  plan->add_flag("--batch-invariant", options->problem.options.batch_invariant, "Fixed splits");
  plan->add_flag("--brief", options->brief, "Without the line a part");
  plan->add_option("--svg", options->svg, "Also draw it into this file");
  add_json_option(*plan, options->json);
  plan->footer(
      "The plan is made on the host and needs no GPU. Load is in the kernel's own cost units.\n"
      "Example: flashlatent plan --length-list 131072,512,512,512 --heads 16 --svg plan.svg");
  plan->callback([&action, options] { action = [options] { return run_plan(*options); }; });
}

}  // namespace flashlatent::tools
