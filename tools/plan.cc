// flashlatent plan: the schedule of a batch, as text, SVG and JSON.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "choose/cutters.h"
#include "choose/near_kernel.h"
#include "choose/typical.h"
#include "core/formats/formats.h"
#include "core/return_if_error.h"
#include "cost/device.h"
#include "cost/packing.h"
#include "cost/table_file.h"
#include "cpu/parallel.h"
#include "dispatch/select.h"
#include "flashlatent/costs.h"
#include "flashlatent/plan_description.h"
#include "io/file.h"
#include "kernel/former_names.h"
#include "plan/describe.h"
#include "plan/geometries.h"
#include "plan/host_plan.h"
#include "plan/prefix_plan.h"
#include "plan/token_lists.h"
#include "runtime/host_memory.h"
#include "tools/bench_case.h"
#include "tools/command.h"

namespace flashlatent::tools {

namespace {

constexpr int kH200Multiprocessors = 132;

struct PlanOptions {
  std::string kernel;
  std::string backend;
  std::optional<int> workers;
  std::string gpu;
  std::string costs = {};  // a file
  int batch = 16;
  int mean_length = 4096;
  std::string distribution = "normal";
  std::vector<int> lengths;
  DecodeProblem problem;
  int dim = 0;
  std::string layout = "separate", kv = "plain", dtype = "bf16";
  int topk = 0;
  int extra_topk = 0;
  int reach = 0;
  int shared_tokens = 0;
  std::string sharing = "auto";
  bool brief = false;
  std::string svg;
  std::string json;
};

/// The executor: the backend of the named kernel, or --backend. Every build has CUDA's kernels in its table.
Result<Executor> executor_of(const PlanOptions& options) {
  Executor executor;
  executor.kernel = options.kernel;
  std::vector<std::string> names;
  for (const choose::Cutter* cutter : choose::cutters()) {
    const DecodeKernel& row = cutter->kernel;
    if (!options.backend.empty() && options.backend != to_string(row.backend())) continue;
    if (options.kernel.empty() || options.kernel == row.name) {
      executor.backend = row.backend();
      return executor;
    }
    names.emplace_back(row.name);
  }
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("--kernel is '{}'{}; {}{} are accepted", options.kernel, renamed(options.kernel),
                  fmt::join(names, ", "), options.backend.empty() ? "" : " of --backend " + options.backend));
}

/// Checks the memory for page tables, which are made if requests share tokens.
Status check_table(const PlanOptions& options, std::int64_t requests, std::int64_t columns) {
  if (options.shared_tokens == 0) return {};
  return runtime::check_host_memory(
      4.0 * static_cast<double>(requests) * static_cast<double>(columns),
      fmt::format("a page table of {} requests and {} pages", requests, columns));
}

/// Whether requests are packed into parts, and what packing takes and gains, in nanoseconds. time = 0: shapes
/// say that nothing is ever packed.
struct Packing {
  bool packs = false;
  std::int64_t time = 0, gain = 0;
};

struct Shown {
  PlanDescription plan = {};
  std::vector<Candidate> candidates;
  std::string near = {};  ///< A line about the near kernel, or empty.
  schedule::Workers workers;
  Packing packing = {};
  Backend backend;
  /// Nanoseconds of a call of these lengths, by an estimate; empty where nothing is known of it: on the CPU,
  /// whose costs are no times, and with shared prefixes.
  std::optional<std::int64_t> estimate = {};
  /// The tokens that the page table reaches to, and those that the plan was chosen for, if these are fewer.
  std::int64_t reach = 0, chosen_for = 0;
  std::size_t requests = 0;
  std::int64_t tokens = 0;  ///< All requests' together.
  std::string gpu = {};     ///< Whose costs: --gpu, or an H200.
};

/// A line about lengths, if the plan was chosen for shorter ones than the page table reaches to.
std::string describe_lengths(const Shown& shown) {
  if (shown.chosen_for == 0) return {};
  return fmt::format("chosen for requests of {} tokens; up to {} are taken\n", shown.chosen_for, shown.reach);
}

/// The lines about estimates, before those of kernels and after them: what they are of.
std::string describe_assumption(const Shown& shown) {
  if (shown.backend == Backend::kCpu) return {};
  return fmt::format("Picked for {} requests of {} tokens each, {}:\n", shown.requests,
                     shown.chosen_for > 0 ? shown.chosen_for : shown.reach,
                     shown.chosen_for > 0 ? "as --typical-tokens says" : "as far as lengths may reach");
}
std::string describe_estimate(const Shown& shown) {
  if (!shown.estimate) return {};
  return fmt::format("A call of these lengths, {} tokens in all, is estimated at {:.1f} us.\n", shown.tokens,
                     static_cast<double>(*shown.estimate) * 1e-3);
}

/// The unit of costs and loads.
std::string describe_unit(const Shown& shown) {
  if (shown.backend == Backend::kCpu) {
    return fmt::format("Costs of a part: in units of {}, for {} threads.\n", shown.plan.kernel,
                       shown.workers.count);
  }
  return fmt::format("Costs of a part: in nanoseconds, of {} with {} multiprocessors.\n", shown.gpu,
                     shown.workers.count);
}

/// A line about packing, if there is anything to say.
std::string describe(const Packing& packing) {
  if (packing.time == 0) return {};
  return fmt::format("packing: {}; it takes a plan {:.1f} us, and a call gains {:.1f} us\n",
                     packing.packs ? "where lengths ask for it" : "never",
                     static_cast<double>(packing.time) * 1e-3, static_cast<double>(packing.gain) * 1e-3);
}

/// Nanoseconds as milliseconds.
double ms_of(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-6;
}

/// The groups that plan() would find if all requests have their first tokens in common.
prefix::Groups make_groups(const PlanOptions& options, const DecodeProblem& problem,
                           const prefix::Shape& shape, const std::vector<int>& lengths) {
  const std::int64_t columns = problem.cache.max_pages;
  const std::int64_t shared = options.shared_tokens / problem.cache.page_size;
  std::vector<std::int32_t> table(lengths.size() * columns);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i) % columns;
    table[i] = static_cast<std::int32_t>(column < shared ? column : static_cast<std::int64_t>(i) + columns);
  }
  return prefix::find_groups(
      shape, {table.data(), columns, problem.cache.max_pages, problem.cache.page_size, lengths.data()},
      problem.query.tokens, problem.options.prefix_sharing == PrefixSharing::kAlways);
}

/// The workers: of the GPU that --gpu names, else an H200's multiprocessors; on the CPU this machine's
/// threads.
Result<schedule::Workers> workers_of(const PlanOptions& options, Backend backend) {
  if (backend == Backend::kCpu) {
    return schedule::Workers(options.workers ? *options.workers : cpu::hardware_threads());
  }
  if (!options.costs.empty()) {
    if (Status status = load_costs(options.costs); !status.ok()) return status;
    if (cost::table_of(options.gpu) == nullptr) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("--costs is '{}', of {}, and --gpu is {}; --gpu '{}' is accepted", options.costs,
                      cost::newest_table()->gpu, options.gpu, cost::newest_table()->gpu));
    }
  }
  if (options.gpu.empty()) return schedule::Workers(options.workers.value_or(kH200Multiprocessors));
  const cost::Gpu* gpu = cost::find_gpu(options.gpu);
  if (gpu != nullptr) return cost::workers_of(*gpu, options.workers.value_or(gpu->multiprocessors));
  std::vector<std::string_view> names;
  for (const cost::Gpu& known : cost::kGpus) names.push_back(known.name);
  return Status(StatusCode::kInvalidArgument,
                fmt::format("--gpu is '{}'; {} are accepted", options.gpu, fmt::join(names, ", ")));
}

/// A plan of these lengths by the candidate's geometry, without shared prefixes.
Result<PlanDescription> plan_of(const Candidate& candidate, const std::vector<int>& lengths, bool packs) {
  const schedule::Geometry& geometry = candidate.geometry;
  const char* kernel = candidate.kernel->name;
  std::vector<std::max_align_t> memory(schedule::plan_bytes(geometry) / sizeof(std::max_align_t) + 1);
  const Memory whole = {memory.data(), memory.size() * sizeof(std::max_align_t)};
  if (geometry.lists == 2) {
    const auto batch = static_cast<std::int64_t>(lengths.size());
    const schedule::UnionLengths both =
        schedule::union_lengths({ConstTensorView(lengths.data(), Dtype::kI32, {batch}), {}});
    schedule::build_on_host(geometry, both, memory.data());
    return describe_plan(geometry, both, whole, kernel);
  }
  schedule::build_on_host(geometry, lengths.data(), memory.data(), {.packs = packs});
  return describe_plan(geometry, lengths.data(), whole, kernel, {});
}

/// What a call of these lengths takes: what it would take if all had the mean length, and what the largest
/// part takes more than it would then.
Result<std::int64_t> estimate_of(const DecodeProblem& problem, const Candidate& picked,
                                 const schedule::Workers& workers, const std::vector<int>& lengths,
                                 std::int64_t largest, bool packs) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  const std::int64_t sum = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t mean = (sum + count - 1) / count;
  const std::vector<int> equal(lengths.size(), static_cast<int>(mean));
  FLASHLATENT_ASSIGN_OR_RETURN(const PlanDescription plan_of_equal, plan_of(picked, equal, packs));
  const std::int64_t more = largest - plan_of_equal.largest();
  return std::max<std::int64_t>(estimate_of_equal(problem, picked, workers, mean) + more, 0);
}

Result<Shown> make_plan(const PlanOptions& options, const std::vector<int>& lengths) {
  Result<Executor> executor = executor_of(options);
  if (!executor.ok()) return executor.status();
  if (!options.gpu.empty() && executor->backend == Backend::kCpu) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("--gpu is '{}', and the plan is of the CPU's kernels; leave it out", options.gpu));
  }
  DecodeProblem problem = options.problem;
  problem.query.batch = static_cast<int>(lengths.size());
  if (options.shared_tokens > 0) {
    problem.options.prefix_sharing = *prefix_sharing_from_name(options.sharing);
  }
  if (options.dim > 0) {
    problem.cache.qk_dim = problem.cache.v_dim = options.dim;
    problem.cache.layout = options.layout == "packed" ? KvLayout::kPacked : KvLayout::kSeparate;
  }
  set_format(problem.cache, *kv_format_from_name(options.kv));
  problem.cache.dtype = options.dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  if (options.topk > 0) problem.sparse = {.enabled = true, .topk = options.topk};
  if (options.extra_topk > 0)
    problem.cache.extra = {.enabled = true, .indexed = true, .topk = options.extra_topk};
  const int longest = std::max(options.reach, *std::max_element(lengths.begin(), lengths.end()));
  // Sparse decode has indices and no page table.
  if (options.topk == 0) problem.cache.max_pages = std::max(1, (longest - 1) / problem.cache.page_size + 1);
  if (Status status = check_table(options, problem.query.batch, problem.cache.max_pages); !status.ok())
    return status;
  Result<schedule::Workers> workers = workers_of(options, executor->backend);
  if (!workers.ok()) return workers.status();
  Result<std::vector<Candidate>> list = candidates(problem, *executor, *workers);
  if (!list.ok()) return list.status();
  const Candidate* picked = cheapest(*list);
  if (picked == nullptr) return none_takes(problem, *list);
  const auto reach_of = [](const DecodeProblem& p) {
    return p.sparse.enabled ? p.sparse.topk : std::int64_t{p.cache.max_pages} * p.cache.page_size;
  };
  const std::optional<DecodeProblem> typical = typical_problem(problem);
  Shown shown{.candidates = std::move(*list),
              .workers = *workers,
              .backend = executor->backend,
              .reach = reach_of(problem),
              .chosen_for = typical ? reach_of(*typical) : 0,
              .requests = lengths.size(),
              .tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}),
              .gpu = options.gpu.empty() ? "an H200" : options.gpu};
  FLASHLATENT_ASSIGN_OR_RETURN(shown.near, explain_near(problem, *executor, *workers, shown.candidates));
  picked = cheapest(shown.candidates);
  const schedule::Geometry& geometry = picked->geometry;
  const bool packed = packs(problem, *picked, *workers);
  if (picked->prefix.requests == 0) {
    FLASHLATENT_ASSIGN_OR_RETURN(shown.plan, plan_of(*picked, lengths, packed));
  } else {
    std::vector<std::max_align_t> memory(
        (prefix::offset(geometry) + prefix::bytes(picked->prefix)) / sizeof(std::max_align_t) + 1);
    const prefix::Groups groups = make_groups(options, problem, picked->prefix, lengths);
    prefix::build_on_host(geometry, picked->prefix, groups.list, lengths.data(), memory.data(), packed);
    FLASHLATENT_ASSIGN_OR_RETURN(
        shown.plan,
        describe_plan(geometry, lengths.data(), {memory.data(), memory.size() * sizeof(std::max_align_t)},
                      picked->kernel->name, picked->prefix));
  }
  if (geometry.lists != 2) shown.packing.packs = packed;
  if (executor->backend == Backend::kCpu) return shown;
  if (geometry.lists != 2) {
    shown.packing.time = cost::packing_time(geometry, *workers);
    shown.packing.gain = cost::packing_gain(geometry, *workers);
  }
  if (shown.plan.groups.empty()) {
    FLASHLATENT_ASSIGN_OR_RETURN(
        shown.estimate, estimate_of(problem, *picked, *workers, lengths, shown.plan.largest(), packed));
  }
  return shown;
}

nlohmann::ordered_json to_json(const Shown& shown, const std::vector<int>& lengths) {
  const PlanDescription& plan = shown.plan;
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const PlanPart& part : plan.parts) {
    nlohmann::ordered_json segments = nlohmann::ordered_json::array();
    for (const PlanSegment& s : part.segments) {
      segments.push_back({{"request", s.request},
                          {"round", s.round},
                          {"blocks", {s.block_begin, s.block_end}},
                          {"slot", s.partial}});
    }
    parts.push_back({{"cost", part.cost}, {"segments", segments}});
  }
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const PlanGroup& group : plan.groups) {
    groups.push_back({{"requests", group.requests},
                      {"tokens", group.tokens},
                      {"tiles", group.tiles},
                      {"splits", group.splits}});
  }
  // On the CPU an estimate is no time.
  const auto estimate = [&](std::int64_t ns) {
    return shown.backend == Backend::kCpu ? nlohmann::ordered_json() : nlohmann::ordered_json(ms_of(ns));
  };
  nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
  for (const Candidate& candidate : shown.candidates) {
    nlohmann::ordered_json row = {{"kernel", candidate.kernel->name}};
    if (candidate.reason.empty()) {
      row["estimate_ms"] = estimate(candidate.times.equal);
      row["varied_ms"] = estimate(candidate.times.varied);
    } else {
      row["declines"] = candidate.reason;
    }
    candidates.push_back(row);
  }
  const Candidate& picked = *cheapest(shown.candidates);
  const schedule::CostModel& costs = picked.geometry.cost;
  return {{"command", command_line()},
          {"kernel", plan.kernel},
          {"partition", plan.partition},
          {"explain", explain(shown.candidates) + shown.near},
          {"estimate_ms", estimate(picked.times.equal)},
          {"lengths_estimate_ms", shown.estimate ? estimate(*shown.estimate) : nlohmann::ordered_json()},
          {"costs",
           {{"per_block", costs.per_block},
            {"per_split", costs.per_split},
            {"per_call", costs.per_call},
            {"per_merge", costs.per_merge},
            {"per_block_alone", costs.per_block_alone},
            {"per_block_near", costs.per_block_near}}},
          {"candidates", candidates},
          {"lengths", lengths},
          {"reach", shown.reach},
          {"chosen_for", shown.chosen_for > 0 ? shown.chosen_for : shown.reach},
          {"workers",
           {{"count", shown.workers.count},
            {"memory", shown.workers.memory},
            {"clock", shown.workers.clock},
            {"products", shown.workers.products}}},
          {"packing",
           {{"packs", shown.packing.packs},
            {"ms", ms_of(shown.packing.time)},
            {"gain_ms", ms_of(shown.packing.gain)}}},
          {"lanes", plan.lanes},
          {"rounds", plan.rounds},
          {"team", plan.team},
          {"block_tokens", plan.block_tokens},
          {"cost_per_block", plan.cost_per_block},
          {"cost_per_split", plan.cost_per_split},
          {"largest", plan.largest()},
          {"ideal", plan.ideal()},
          {"imbalance", plan.imbalance()},
          {"slots", plan.partials},
          {"merges", plan.merges},
          {"groups", groups},
          {"parts", parts}};
}

int run_plan(const PlanOptions& options) {
  if (Status status = check_files_differ({{"--svg", options.svg, true}, {"--json", options.json, true}});
      !status.ok()) {
    return fail(status);
  }
  std::vector<int> lengths = options.lengths.empty()
                                 ? make_lengths(options.distribution, options.batch, options.mean_length,
                                                options.problem.query.tokens)
                                 : options.lengths;
  if (options.topk > 0) {
    for (int& length : lengths) length = std::min(length, options.topk);
  }
  Result<Shown> shown = make_plan(options, lengths);
  if (!shown.ok()) return fail(shown.status());
  const std::string text = to_string(shown->plan);
  // Three lines of head, one for each group; then one for each part.
  std::size_t end = 0;
  for (std::size_t line = 0; line < 3 + shown->plan.groups.size(); ++line) end = text.find('\n', end) + 1;
  fmt::print("{}{}{}{}{}{}{}", describe_assumption(*shown), explain(shown->candidates) + shown->near,
             describe_lengths(*shown), describe_estimate(*shown), describe(shown->packing),
             describe_unit(*shown), options.brief ? text.substr(0, end) : text);
  if (!options.svg.empty()) {
    const std::string picture = to_svg(shown->plan);
    const std::array<std::string_view, 1> pieces = {picture};
    if (Status status = io::write_file(options.svg, pieces); !status.ok()) return fail(status);
  }
  if (Status status = write_json(options.json, to_json(*shown, lengths)); !status.ok()) return fail(status);
  return kRight;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App* plan = app.add_subcommand("plan", "Show a batch's schedule: parts, their load, splits");
  auto options = std::make_shared<PlanOptions>();
  options->problem.query.heads = 128;
  options->problem.options.softmax_scale = 1;  // does not change a plan
  auto add = [&](const char* flag, int& value, const char* help, int most) {
    plan->add_option(flag, value, help)->check(CLI::Range(1, most))->capture_default_str();
  };
  plan->add_option("--kernel", options->kernel, "Whose schedule; left out: the one that would be picked")
      ->check(not_empty("kernel"));
  plan->add_option("--backend", options->backend,
                   "Whose kernels may be picked; left out: the kernel's, or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  plan->add_option("--workers", options->workers,
                   "Multiprocessors or threads that share the work; left out: those of --gpu, or 132, as an "
                   "H200 has; on the "
                   "CPU this machine's")
      ->check(CLI::Range(1, 1 << 16));
  plan->add_option("--gpu", options->gpu,
                   "Whose costs: H200 (as if left out), H100, H100 PCIe, H20, ... or a driver's name of it")
      ->check(not_empty("GPU"));
  plan->add_option("--costs", options->costs,
                   "A file of costs of the GPU that --gpu names, as `flashlatent costs` prints them")
      ->needs("--gpu")
      ->check(not_empty("file"));
  add("--batch", options->batch, "Requests", 1 << 20);
  add("--tokens", options->mean_length, "Mean length, s_k", 1 << 30);
  plan->add_option("--lengths", options->distribution, "uniform, or normal with deviation s_k/2")
      ->check(CLI::IsMember({"uniform", "normal"}))
      ->capture_default_str();
  CLI::Option* list = add_list_option(*plan, "--length-list", options->lengths, 0, 1 << 30,
                                      "Every request's length, instead of --batch, --tokens and --lengths");
  for (const char* other : {"--batch", "--tokens", "--lengths"}) list->excludes(other);
  add("--query-tokens", options->problem.query.tokens, "s_q", 1 << 16);
  add("--heads", options->problem.query.heads, "h_q", 1 << 16);
  add("--kv-heads", options->problem.cache.heads, "h_kv", 1 << 16);
  add("--page-size", options->problem.cache.page_size, "Tokens a page", 1 << 20);
  plan->add_option("--dim", options->dim,
                   "Of separate keys and values (MHA, GQA); 0: a latent cache of 576, values 512")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  plan->add_option("--layout", options->layout,
                   "Of separate keys and values: separate, or packed as vLLM has them")
      ->needs("--dim")
      ->check(CLI::IsMember({"separate", "packed"}))
      ->capture_default_str();
  plan->add_option("--kv", options->kv,
                   "Cache format; plain: elements of the dtype; all but plain and e4m3 are latent")
      ->check(CLI::IsMember(kv_format_names()))
      ->capture_default_str();
  plan->add_option("--dtype", options->dtype, "bf16 or fp16")
      ->check(CLI::IsMember({"bf16", "fp16"}))
      ->capture_default_str();
  plan->add_option("--shared-tokens", options->shared_tokens,
                   "All requests have so many tokens at their begin on the same pages")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  plan->add_option("--prefix-sharing", options->sharing, "Are those attended to by groups?")
      ->needs("--shared-tokens")
      ->check(CLI::IsMember({"off", "auto", "always"}))
      ->capture_default_str();
  plan->add_option("--topk", options->topk, "Sparse: indices of a query token; 0: dense")
      ->excludes("--shared-tokens")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  plan->add_option("--extra-topk", options->extra_topk,
                   "Indices of a query token into an extra cache, in one softmax with --topk's; 0: none")
      ->needs("--topk")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  plan->add_option("--reach", options->reach,
                   "Tokens that the page table has room for at least; left out: those of the longest request")
      ->excludes("--topk")
      ->check(CLI::Range(1, 1 << 30));
  add_typical_tokens_option(*plan, options->problem.options.typical_tokens);
  plan->add_option("--calls-per-plan", options->problem.options.calls_per_plan,
                   "Calls that read one plan, mostly a model's layers; 0: many. Few are not worth packing")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  plan->add_flag("--batch-invariant", options->problem.options.batch_invariant, "Fixed splits");
  plan->add_flag("--brief", options->brief, "Without the line a part");
  plan->add_option("--svg", options->svg, "Also draw it into this file")->check(writable_file());
  add_json_option(*plan, options->json);
  plan->footer(
      "The plan is made on the host and needs neither a GPU nor a build with CUDA. Costs of parts are in "
      "nanoseconds, measured on an H200 (cpu_dense: in units of its own). Kernels are picked before lengths "
      "are known, so their estimates take every request to be as long as lengths may reach; the estimate of "
      "these lengths stands after them.\n"
      "Examples: flashlatent plan --length-list 131072,512,512,512 --heads 16 --svg plan.svg\n"
      "          flashlatent plan --batch 64 --tokens 8704 --lengths uniform --heads 32 --kv-heads 8 --dim "
      "128 --shared-tokens 8192 --brief");
  plan->callback([&action, options] { action = [options] { return run_plan(*options); }; });
}

}  // namespace flashlatent::tools
