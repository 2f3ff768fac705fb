// flashlatent tune: measures a GPU's table of costs.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>

#include "cost/device.h"
#include "cost/table_file.h"
#include "dispatch/select.h"
#include "io/file.h"
#include "runtime/roof.h"
#include "tools/bench_decode.h"
#include "tools/kept_times.h"
#include "tools/machine.h"
#include "tools/progress.h"
#include "tools/source_tree.h"
#include "tools/tune_cases.h"
#include "tools/tune_fit.h"

namespace flashlatent::tools {

namespace {

constexpr int kUsualSeconds = 170;
constexpr int kRepeats = 8, kRestMs = 10;

struct TuneOptions {
  std::string json, costs;
  std::string times;  // of an earlier run
  std::string filter;
  std::string gpu = "H200";  // with --list
  int seconds = kUsualSeconds;
  int device = 0;
  bool list = false;
};

/// A call that was timed.
struct TimedCall {
  std::string name;
  runtime::Timing timing;
};

/// Everything that was measured, and what was not.
struct Measurements {
  std::vector<TimedCall> timed;
  std::vector<MeasuredCall> calls;                            // in the same order
  std::vector<std::pair<std::string, std::string>> left_out;  // names and reasons
  double seconds = 0;
};

/// Names of constants by place: "plan packing per_call, per_member".
std::vector<std::string> by_place(const std::vector<Entry>& entries) {
  std::vector<std::string> lines;
  const Entry* before = nullptr;
  for (const Entry& entry : entries) {
    if (before != nullptr && before->place == entry.place) {
      lines.back() += fmt::format(", {}", cost::fields()[entry.field].name);
    } else {
      lines.push_back(entry.name());
    }
    before = &entry;
  }
  return lines;
}

Status no_filter_match(const std::string& filter) {
  return {StatusCode::kInvalidArgument,
          fmt::format("--filter '{}' matches no kernel with a call to measure; `flashlatent info` names the "
                      "kernels",
                      filter)};
}

const char* start_name(bool own) {
  return own ? "FLASHLATENT_COSTS" : "built-in";
}

/// A GPU that is not at hand, with the table that it starts from.
struct KnownGpu {
  schedule::Workers workers;
  cost::Table table;
  bool own = false;  ///< Is the table one of its own?
};
/// `what` is called `name`: "--gpu".
Result<KnownGpu> known_gpu(const std::string& what, const std::string& name) {
  if (const Status status = cost::load_from_environment(); !status.ok()) return status;
  if (const cost::Gpu* gpu = cost::find_gpu(name)) {
    const schedule::Workers workers = cost::workers_of(*gpu);
    const bool own = workers.costs != nullptr;  // by FLASHLATENT_COSTS
    return KnownGpu{workers, own ? *workers.costs : cost::scaled_table(std::string(gpu->name), workers), own};
  }
  std::string names;
  for (const cost::Gpu& known : cost::kGpus)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  return Status{StatusCode::kInvalidArgument, fmt::format("{} is '{}'; {} are accepted", what, name, names)};
}

int list_calls(const TuneOptions& options) {
  const Result<KnownGpu> gpu = known_gpu("--gpu", options.gpu);
  if (!gpu.ok()) return fail(gpu.status());
  const auto& [workers, table, own] = *gpu;
  const std::vector<TuneCase> cases = tune_cases(workers, table, options.filter);
  if (cases.empty()) return fail(no_filter_match(options.filter));
  std::vector<Entry> kept = entries_of(table);
  const std::size_t all = kept.size();
  std::size_t calls = 0;
  for (const TuneCase& c : cases) {
    for (const KernelCall& call : c.calls) {
      fmt::print("{}\n", name_of(c, call));
      ++calls;
      for (const Entry& entry : entries_of_time(call, workers, table)) std::erase(kept, entry);
    }
  }
  fmt::print(
      "\n{} calls of {} shapes on {}; their times depend on {} of {} constants. Those of cuts follow them, "
      "the "
      "others stay:\n",
      calls, cases.size(), table.gpu, all - kept.size(), all);
  for (const std::string& line : by_place(kept)) fmt::print("  {}\n", line);
  return kRight;
}

/// Is this about the call, and not about the device?
bool is_of_call(const Status& status) {
  return status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kExhausted;
}

/// Times the calls of a case.
Status measure_case(const TuneCase& c, const runtime::Roof& roof, const Executor& executor,
                    const std::function<bool()>& is_late, Measurements& all) {
  const auto leave_out = [&](const KernelCall& call, const std::string& why) {
    all.left_out.emplace_back(name_of(c, call), why);
  };
  Result<runtime::BenchInput> input = runtime::make_bench_input(
      c.bench.problem, c.bench.lengths, c.bench.deviation, 0, executor, 0, c.bench.extra_tokens);
  if (!input.ok()) {
    if (!is_of_call(input.status())) return input.status();
    for (const KernelCall& call : c.calls) leave_out(call, input.status().message());
    return {};
  }
  BenchOptions options;
  options.timing.repeats = kRepeats;
  options.timing.rest_ms = kRestMs;
  options.timing.graph = !c.bench.prefill;
  for (const KernelCall& call : c.calls) {
    if (is_late()) {
      leave_out(call, "no time was left");
      continue;
    }
    Executor by_name = executor;
    by_name.kernel = call.kernel;
    const Result<Measurement> m = measure(c.bench, *input, options, roof, by_name);
    if (m.ok()) {
      all.timed.push_back({name_of(c, call), m->timing});
      all.calls.push_back({call, m->timing.median * 1e6});
    } else if (is_of_call(m.status())) {
      leave_out(call, m.status().message());
    } else {
      return {m.status().code(), fmt::format("{}: {}", name_of(c, call), m.status().message())};
    }
  }
  return {};
}

Result<Measurements> measure_all(const std::vector<TuneCase>& cases, const runtime::Roof& roof,
                                 const Executor& executor, int seconds) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto is_late = [&] { return elapsed() > seconds; };
  std::int64_t total = 0, done = 0;
  for (const TuneCase& c : cases) total += static_cast<std::int64_t>(c.calls.size());
  Measurements all;
  Progress progress("tune", total);
  for (const TuneCase& c : cases) {
    if (is_late()) {
      for (const KernelCall& call : c.calls) all.left_out.emplace_back(name_of(c, call), "no time was left");
    } else if (Status status = measure_case(c, roof, executor, is_late, all); !status.ok()) {
      return status;
    }
    done += static_cast<std::int64_t>(c.calls.size());
    progress.update(done);
  }
  all.seconds = elapsed();
  return all;
}

/// How far times are from what a table says: of so many calls.
struct Errors {
  std::vector<double> all;

  void add(double said, double nanoseconds) {
    if (said > 0) all.push_back(std::abs(nanoseconds / said - 1));
  }
  /// The part `p` of them is no greater, in percent.
  double at(double p) {
    if (all.empty()) return 0;
    std::sort(all.begin(), all.end());
    return 100 * all[std::min(all.size() - 1, static_cast<std::size_t>(p * static_cast<double>(all.size())))];
  }
};

/// What is said of a run, beside its files.
std::string report(const Measurements& all, const Tuned& tuned) {
  std::map<std::string, std::array<Errors, 2>> kernels;
  int cut_otherwise = 0;
  for (std::size_t i = 0; i < all.calls.size(); ++i) {
    const double ns = all.calls[i].nanoseconds;
    for (const std::string& name : {all.calls[i].call.kernel, std::string("all")}) {
      kernels[name][0].add(tuned.calls[i].before, ns);
      kernels[name][1].add(tuned.calls[i].after, ns);
    }
    cut_otherwise += tuned.calls[i].after == 0 ? 1 : 0;
  }
  std::string text = fmt::format("{} calls in {:.0f} s; {} were left out\n", all.calls.size(), all.seconds,
                                 all.left_out.size());
  text += "how far times are from costs, in percent: the median, and what nine of ten are within\n";
  text += fmt::format("{:<18} {:>6} {:>8} {:>8}    {:>8} {:>8}\n", "kernel", "calls", "before", "9/10",
                      "after", "9/10");
  for (auto& [name, errors] : kernels) {
    text += fmt::format("{:<18} {:>6} {:>8.1f} {:>8.1f}    {:>8.1f} {:>8.1f}\n", name, errors[1].all.size(),
                        errors[0].at(0.5), errors[0].at(0.9), errors[1].at(0.5), errors[1].at(0.9));
  }
  std::vector<Entry> kept;
  std::array<int, 3> counts = {};
  for (const TunedEntry& one : tuned.entries) {
    ++counts[static_cast<std::size_t>(one.origin)];
    if (one.origin == Origin::kKept) kept.push_back(one.entry);
  }
  if (cut_otherwise > 0) {
    text += fmt::format(
        "{} of these calls are cut otherwise by the new costs; with FLASHLATENT_COSTS=FILE a second "
        "run measures them so\n",
        cut_otherwise);
  }
  text += fmt::format("constants: {} measured, {} of cuts follow, {} kept, since no call depends on them:\n",
                      counts[0], counts[1], counts[2]);
  for (const std::string& line : by_place(kept)) text += fmt::format("  {}\n", line);
  return text;
}

std::string text_of(const Tuned& tuned, const nlohmann::ordered_json& machine, const Measurements& all) {
  const auto shown = [](const nlohmann::ordered_json& value) {
    return value.is_string() ? value.get<std::string>() : std::string("unknown");
  };
  return fmt::format("# {} calls, measured by `{}` in {:.0f} s on {}, driver {}; source tree {}.\n{}",
                     all.calls.size(), command_line(), all.seconds, shown(machine["gpu"]),
                     shown(machine["driver"]), source_tree(), cost::to_text(tuned.table));
}

nlohmann::ordered_json to_json(const Measurements& all, const Tuned& tuned) {
  using Json = nlohmann::ordered_json;
  Json document = {{"seconds", all.seconds}, {"gpu", tuned.table.gpu}};
  Json constants = Json::array(), results = Json::array(), left_out = Json::array();
  for (const TunedEntry& one : tuned.entries) {
    constants.push_back({{"name", one.entry.name()},
                         {"before", one.before},
                         {"after", one.after},
                         {"origin", to_string(one.origin)},
                         {"calls", one.calls},
                         {"deviation", one.deviation}});
  }
  const auto ms = [](double nanoseconds) { return nanoseconds > 0 ? Json(nanoseconds * 1e-6) : Json(); };
  for (std::size_t i = 0; i < all.calls.size(); ++i) {
    const TimedCall& timed = all.timed[i];
    Json row = {{"name", timed.name}, {"kernel", all.calls[i].call.kernel}, {"ms", timed.timing.median}};
    if (timed.timing.repeats > 0) {  // timed by this run
      row.update(
          {{"ms_min", timed.timing.least}, {"ms_max", timed.timing.most}, {"repeats", timed.timing.repeats}});
    }
    row.update({{"before_ms", ms(tuned.calls[i].before)}, {"after_ms", ms(tuned.calls[i].after)}});
    results.push_back(std::move(row));
  }
  for (const auto& [name, why] : all.left_out) left_out.push_back({{"name", name}, {"why", why}});
  document["constants"] = std::move(constants);
  document["results"] = std::move(results);
  document["left_out"] = std::move(left_out);
  return document;
}

/// The name under which a GPU's table is kept: the shortest that tells it from others.
std::string table_name(const std::string& driver) {
  if (const cost::Gpu* gpu = cost::find_gpu(driver)) return std::string(gpu->name);
  constexpr std::string_view kVendor = "NVIDIA ";
  return driver.starts_with(kVendor) ? driver.substr(kVendor.size()) : driver;
}

Status no_gpu(const Status& why) {
  return {why.code(),
          fmt::format("tune measures on a GPU, and none can be used: {}; `flashlatent tune --list` shows "
                      "what would be measured",
                      why.message())};
}

/// Where the new table and what is said of it go.
int write_table(const TuneOptions& options, const std::string& table, const std::string& said,
                const std::string& gpu) {
  if (options.costs.empty()) {
    tell("{}", said);
    fmt::print("{}", table);
    return kRight;
  }
  const std::array<std::string_view, 1> pieces = {table};
  if (const Status status = io::write_file(options.costs, pieces); !status.ok()) return fail(status);
  fmt::print("{}", said);
  fmt::print("{}: costs of {}; FLASHLATENT_COSTS={} has calls go by them\n", options.costs, gpu,
             options.costs);
  return kRight;
}

/// Fits times that an earlier run kept.
int fit_again(const TuneOptions& options) {
  const Result<KeptTimes> kept = read_times(options.times);
  if (!kept.ok()) return fail(kept.status());
  const Result<KnownGpu> gpu = known_gpu("the gpu of " + options.times, kept->gpu);
  if (!gpu.ok()) return fail(gpu.status());
  const auto& [workers, start, own] = *gpu;
  Measurements all;
  for (const TuneCase& c : tune_cases(workers, start, options.filter)) {
    for (const KernelCall& call : c.calls) {
      const auto found = kept->ms.find(name_of(c, call));
      if (found != kept->ms.end()) {
        all.timed.push_back({found->first, {.median = found->second}});
        all.calls.push_back({call, found->second * 1e6});
      } else {
        all.left_out.emplace_back(name_of(c, call), "it was not timed");
      }
    }
  }
  if (all.calls.empty()) {
    return fail({StatusCode::kInvalidArgument,
                 fmt::format("{} has no time of a call that would be measured; `flashlatent tune --list` "
                             "names these",
                             options.times)});
  }
  const Tuned tuned = tune(start, all.calls, workers);
  const std::string heading = fmt::format("# {} calls, fitted again by `{}`; source tree {}.\n",
                                          all.calls.size(), command_line(), source_tree());
  if (const int status =
          write_table(options, heading + cost::to_text(tuned.table), report(all, tuned), tuned.table.gpu);
      status != kRight) {
    return status;
  }
  nlohmann::ordered_json document = {
      {"source_tree", source_tree()}, {"command", command_line()}, {"start", start_name(own)}};
  document.update(to_json(all, tuned));
  if (const Status status = write_json(options.json, document); !status.ok()) return fail(status);
  return kRight;
}

int run_tune(const TuneOptions& options) {
  if (const Status status = check_files_differ({{"--costs", options.costs, true},
                                                {"--json", options.json, true},
                                                {"--times", options.times, false}});
      !status.ok()) {
    return fail(status);
  }
  if (options.list) return list_calls(options);
  if (options.json == "-" && options.costs.empty()) {
    return fail({StatusCode::kInvalidArgument,
                 "--json is -, and without --costs the table goes to stdout, too; add --costs FILE"});
  }
  if (!options.times.empty()) return fit_again(options);
  Executor executor;
  executor.backend = Backend::kCuda;
  executor.device = options.device;
  if (const Status status = available(Backend::kCuda); !status.ok()) return fail(no_gpu(status));
  Result<schedule::Workers> workers = workers_of(executor);
  if (!workers.ok()) return fail(no_gpu(workers.status()));
  Result<runtime::Stream> stream = runtime::Stream::create(executor);
  if (!stream.ok()) return fail(stream.status());
  executor.stream = stream->get();
  nlohmann::ordered_json machine = describe_machine(executor);
  const std::string name =
      table_name(machine.at("gpu").is_string() ? machine.at("gpu").get<std::string>() : "");
  const bool own = workers->costs != nullptr;
  const cost::Table start = own ? *workers->costs : cost::scaled_table(name, *workers);
  const std::vector<TuneCase> cases = tune_cases(*workers, start, options.filter);
  if (cases.empty()) return fail(no_filter_match(options.filter));
  const Result<runtime::Roof> roof = runtime::measure_roof(executor);
  if (!roof.ok()) return fail(roof.status());
  const Result<Measurements> all = measure_all(cases, *roof, executor, options.seconds);
  if (!all.ok()) return fail(all.status());
  if (all->calls.empty()) {
    return fail(
        {StatusCode::kInvalidArgument,
         fmt::format("--seconds is {}, in which no call was measured; more are accepted", options.seconds)});
  }
  const Tuned tuned = tune(start, all->calls, *workers);
  const std::string table = text_of(tuned, machine, *all), said = report(*all, tuned);
  if (const int status = write_table(options, table, said, tuned.table.gpu); status != kRight) return status;
  nlohmann::ordered_json document = {
      {"machine", machine},
      {"source_tree", source_tree()},
      {"command", command_line()},
      {"roof", {{"read_tbps", roof->read_tbps}, {"matmul_tflops", roof->matmul_tflops}}},
      {"start", start_name(own)}};
  document.update(to_json(*all, tuned));
  if (const Status status = write_json(options.json, document); !status.ok()) return fail(status);
  return kRight;
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  CLI::App* tune =
      app.add_subcommand("tune", "Measure the costs of this GPU, as a file for FLASHLATENT_COSTS");
  auto options = std::make_shared<TuneOptions>();
  tune->add_option("--costs", options->costs, "Where the table goes; left out: to stdout")
      ->check(writable_file());
  tune->add_option("--seconds", options->seconds, "Measure no longer than this")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  tune->add_option("--filter", options->filter, "Only kernels whose name contains this; others' costs stay")
      ->check(not_empty("kernel"));
  tune->add_option("--device", options->device, "Which GPU; 0 if left out")->check(CLI::Range(0, 1023));
  CLI::Option* list = tune->add_flag("--list", options->list,
                                     "Print the calls that would be measured and stop; needs no GPU");
  CLI::Option* gpu =
      tune->add_option("--gpu", options->gpu, "Whose calls: H100, H20, ..., or a driver's name")
          ->capture_default_str();
  gpu->needs(list);
  CLI::Option* times = tune->add_option("--times", options->times,
                                        "Fit the times that an earlier run wrote with --json; needs no GPU");
  add_json_option(*tune, options->json);
  for (const char* other : {"--costs", "--times"}) list->excludes(tune->get_option(other));
  for (const char* other : {"--seconds", "--device"}) {
    list->excludes(tune->get_option(other));
    times->excludes(tune->get_option(other));
  }
  list->excludes(tune->get_option("--json"));
  tune->footer(
      "Starts from the built-in costs, scaled to this GPU, or from those of FLASHLATENT_COSTS. Files are "
      "written at the "
      "end. Let nothing else run on the GPU.\n"
      "Example: flashlatent tune --costs h20.costs --json h20.json\n"
      "         FLASHLATENT_COSTS=h20.costs flashlatent bench shapes --seed 7 --count 300 --all-kernels");
  tune->callback([&action, options] { action = [options] { return run_tune(*options); }; });
}

}  // namespace flashlatent::tools
