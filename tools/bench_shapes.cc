// flashlatent bench shapes: times drawn shapes, beside the times that a file has of other libraries.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "tools/all_kernels.h"
#include "tools/bench_decode.h"
#include "tools/files.h"
#include "tools/machine.h"
#include "tools/progress.h"
#include "tools/shape.h"
#include "tools/shape_summary.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

namespace {

constexpr const char* kOurs = "flashlatent";
// Calls of a step: the layers of a model. A CPU would take too long for this many.
constexpr int kLatentLayers = 61, kPagedLayers = 30, kCpuLayers = 1;

struct BenchShapesOptions {
  BenchOptions bench;
  std::string file;
  int count = 0;
  bool no_read = false;
  bool all_kernels = false;
};

/// A shape, the case that is timed, and the best of the file's times.
struct ShapeCase {
  Shape shape;
  BenchCase bench;
};

/// Compares our time with one in the file.
class Comparer {
 public:
  Comparer(const Shapes& shapes, const runtime::Roof& roof, std::string gpu)
      : file_roof_(shapes.roof), roof_(roof), other_(!shapes.gpu.empty() && shapes.gpu != gpu) {}

  /// Must times be compared over each device's floor, because the file is of another device?
  bool by_floor() const { return other_; }

  /// Our time over `ms`; if the devices differ, each time over its device's floor.
  double ratio(const Measurement& m, double ms) const {
    const double direct = m.timing.median / ms;
    if (!other_ || !file_roof_) return direct;
    const double bytes = m.gbps * m.timing.median * 1e6, flops = m.tflops * m.timing.median * 1e9;
    auto floor = [&](const runtime::Roof& roof) {
      return std::max(bytes / roof.read_tbps, flops / roof.matmul_tflops);
    };
    return direct * floor(*file_roof_) / floor(roof_);
  }

 private:
  std::optional<runtime::Roof> file_roof_;
  runtime::Roof roof_;
  bool other_;
};

ShapeResult compare(const ShapeCase& c, const Measurement& m, const Comparer& comparer) {
  ShapeResult r{.name = c.bench.name, .kind = kind_of(c.shape), .kernel = m.kernel};
  r.query_tokens = c.shape.query_tokens;
  r.ms = m.timing.median;
  double best = 0;
  for (const auto& [library, ms] : c.shape.times) {
    if (library == kOurs) {
      r.kept = comparer.ratio(m, ms);
    } else if (best == 0 || ms < best) {
      best = ms;
      r.rival = library;
    }
  }
  if (best > 0) r.ratio = comparer.ratio(m, best);
  if (m.estimate_ms > 0 && !c.shape.varied) r.estimate = m.timing.median / m.estimate_ms;
  if (m.reading.median > 0) r.reading = m.timing.median / m.reading.median;
  return r;
}

Result<std::vector<ShapeCase>> cases_of(std::vector<Shape> shapes, const BenchShapesOptions& options) {
  std::vector<ShapeCase> cases;
  std::map<std::string, int> named;
  for (Shape& shape : shapes) {
    BenchCase bench = case_of(shape);
    // Some shapes differ only in their lists of lengths.
    if (const int before = named[bench.name]++; before > 0) bench.name += fmt::format(" ({})", before + 1);
    if (bench.name.find(options.bench.filter) == std::string::npos) continue;
    cases.push_back({std::move(shape), std::move(bench)});
  }
  if (cases.empty()) {
    return Status{StatusCode::kInvalidArgument,
                  fmt::format("--filter '{}' matches no shape; --list shows them", options.bench.filter)};
  }
  return cases;
}

/// The libraries of all shapes, in the order of their first appearance.
std::vector<std::string> libraries_of(const std::vector<ShapeCase>& cases) {
  std::vector<std::string> libraries;
  for (const ShapeCase& c : cases) {
    for (const auto& [library, ms] : c.shape.times) {
      if (std::find(libraries.begin(), libraries.end(), library) == libraries.end()) {
        libraries.push_back(library);
      }
    }
  }
  return libraries;
}

std::string number(double value, int digits) {
  return value > 0 ? fmt::format("{:.{}f}", value, digits) : "-";
}

void print_head(const std::vector<std::string>& libraries) {
  fmt::print("{:<50} {:<12} {:>9}", "shape", "kernel", "ms");
  for (const std::string& library : libraries) fmt::print(" {:>11}", library);
  fmt::print(" {:>6} {:>9} {:>9} {:>6}\n", "ratio", "read ms", "estimate", "roof%");
}

void print_row(const ShapeCase& c, const Measurement& m, const ShapeResult& r,
               const std::vector<std::string>& libraries) {
  fmt::print("{:<50} {:<12} {:>9.4f}", c.bench.name, m.kernel, m.timing.median);
  for (const std::string& library : libraries) {
    const auto at = std::find_if(c.shape.times.begin(), c.shape.times.end(),
                                 [&](const auto& time) { return time.first == library; });
    fmt::print(" {:>11}", number(at == c.shape.times.end() ? 0 : at->second, 4));
  }
  fmt::print(" {:>6} {:>9} {:>9} {:>6.1f}\n", number(r.ratio, 3), number(m.reading.median, 4),
             number(m.estimate_ms, 4), m.roof_pct);
}

nlohmann::ordered_json row_of(const ShapeCase& c, const Measurement& m, const ShapeResult& r,
                              const BenchOptions& options) {
  nlohmann::ordered_json row = to_json(c.bench, m, options);
  row["kind"] = r.kind;
  if (!c.shape.latent) row["layout"] = to_string(c.bench.problem.cache.layout);
  for (const auto& [library, ms] : c.shape.times) row["file_ms"][library] = ms;
  if (r.ratio > 0) {
    row["rival"] = r.rival;
    row["ratio"] = r.ratio;
  }
  if (r.kept > 0) row["ratio_to_ours_in_file"] = r.kept;
  return row;
}

/// The options for the step in which a shape is timed.
BenchOptions step_of(const Shape& shape, const BenchShapesOptions& options, const Executor& executor) {
  BenchOptions bench = options.bench;
  if (bench.layers == 0) bench.layers = shape.latent ? kLatentLayers : kPagedLayers;
  if (options.bench.layers == 0 && executor.backend == Backend::kCpu) bench.layers = kCpuLayers;
  bench.with_read = executor.backend == Backend::kCuda && !options.no_read;
  return bench;
}

/// Steps are replayed as CUDA graphs where there are any.
runtime::TimingOptions graph_of(runtime::TimingOptions timing, const Executor& executor) {
  timing.graph = executor.backend == Backend::kCuda;
  return timing;
}

void print_kernels(const KernelTimes& times) {
  fmt::print("  ");
  for (const auto& [kernel, ms] : times.ms) {
    fmt::print(" {} {:.4f}{}", kernel, ms, kernel == times.picked ? " (picked)" : "");
  }
  fmt::print("; {:.3f} of the best\n", times.loss());
}

Result<Shapes> shapes_of(const BenchShapesOptions& options) {
  if (!options.file.empty()) return read_shapes(options.file);
  if (options.count > 0) return Shapes{.list = draw_shapes(options.bench.seed, options.count)};
  return Status{StatusCode::kInvalidArgument, "neither FILE nor --count is given; one of them is needed"};
}

std::string name_of_gpu(const nlohmann::ordered_json& machine) {
  return machine.at("gpu").is_string() ? machine.at("gpu").get<std::string>() : "CPU";
}

int run_bench_shapes(const BenchShapesOptions& options) {
  if (const Status status =
          check_files_differ({{"FILE", options.file, false}, {"--json", options.bench.json, true}});
      !status.ok()) {
    return fail(status);
  }
  Result<Shapes> shapes = shapes_of(options);
  if (!shapes.ok()) return fail(shapes.status());
  Result<std::vector<ShapeCase>> made_cases = cases_of(std::move(shapes->list), options);
  if (!made_cases.ok()) return fail(made_cases.status());
  const std::vector<ShapeCase>& cases = *made_cases;
  if (options.bench.list) {
    for (const ShapeCase& c : cases) fmt::print("{}\n", c.bench.name);
    return kRight;
  }
  Result<Executor> made = make_executor(options.bench.executor);
  if (!made.ok()) return fail(made.status());
  Executor executor = *made;
  for (const ShapeCase& c : cases) {
    const Status status = runtime::check_bench_memory(c.bench.problem, c.shape.lengths, executor);
    if (!status.ok()) return fail({status.code(), fmt::format("{}: {}", c.bench.name, status.message())});
  }
  Result<runtime::Stream> stream = runtime::Stream::create(executor);
  if (!stream.ok()) return fail(stream.status());
  executor.stream = stream->get();
  Result<runtime::Roof> roof = runtime::measure_roof(executor);
  if (!roof.ok()) return fail(roof.status());
  const nlohmann::ordered_json machine = describe_machine(executor);
  const Comparer comparer(*shapes, *roof, name_of_gpu(machine));
  fmt::print("roof, measured now: read {:.3f} TB/s, {:.3f} TFLOP/s; source tree {}\n", roof->read_tbps,
             roof->matmul_tflops, source_tree());
  fmt::print("ms: of a call, in steps of a plan and so many calls as a model has layers\n");
  if (comparer.by_floor()) {
    fmt::print("the file's times are of {}: a ratio is of times over each device's floor\n", shapes->gpu);
  }
  const std::vector<std::string> libraries = libraries_of(cases);
  print_head(libraries);

  std::vector<ShapeResult> results;
  std::vector<KernelTimes> kernels;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Progress progress("bench shapes", static_cast<std::int64_t>(cases.size()));
  for (const ShapeCase& c : cases) {
    const BenchOptions bench = step_of(c.shape, options, executor);
    Result<runtime::BenchInput> input = runtime::make_bench_input(
        bench.reaching(c.bench.problem), c.shape.lengths, c.bench.deviation, bench.seed, executor);
    if (!input.ok()) return fail(input.status());
    Result<Measurement> m = measure(c.bench, *input, bench, *roof, executor);
    if (!m.ok()) return fail(m.status());
    results.push_back(compare(c, *m, comparer));
    rows.push_back(row_of(c, *m, results.back(), bench));
    progress.clear();
    print_row(c, *m, results.back(), libraries);
    if (bench.explain) fmt::print("{}", m->why);
    if (options.all_kernels) {
      Result<KernelTimes> times =
          time_kernels(*input, graph_of(bench.timing, executor), bench.layers, executor);
      if (!times.ok()) return fail(times.status());
      times->name = c.bench.name;
      for (const auto& [kernel, ms] : times->ms) rows.back()["kernels_ms"][kernel] = ms;
      print_kernels(*times);
      kernels.push_back(std::move(*times));
    }
    std::fflush(stdout);
    progress.update(static_cast<std::int64_t>(results.size()));
  }
  progress.clear();
  fmt::print("{}", to_text(results));
  if (options.all_kernels) fmt::print("{}", to_text(kernels));
  nlohmann::ordered_json document = {
      {"machine", machine},
      {"source_tree", source_tree()},
      {"command", command_line()},
      {"roof", {{"read_tbps", roof->read_tbps}, {"matmul_tflops", roof->matmul_tflops}}}};
  if (options.file.empty()) {
    document["drawn"] = {{"seed", options.bench.seed}, {"count", options.count}};
  } else {
    document["file"] = {{"name", options.file}, {"gpu", shapes->gpu}, {"by_floor", comparer.by_floor()}};
  }
  document["summary"] = to_json(results);
  if (options.all_kernels) document["summary"]["picks"] = to_json(kernels);
  document["results"] = rows;
  if (Status status = write_json(options.bench.json, document); !status.ok()) return fail(status);
  return kRight;
}

}  // namespace

void add_bench_shapes(CLI::App& bench, Action& action) {
  CLI::App* app = bench.add_subcommand(
      "shapes", "Shapes as models have them, from a file with others' times or drawn at random");
  auto options = std::make_shared<BenchShapesOptions>();
  BenchOptions& common = options->bench;
  common.timing.repeats = 10;
  common.timing.rest_ms = 20;
  CLI::Option* file =
      app->add_option("FILE", options->file, "Shapes as JSON, such as bench/shapes/h100.json");
  app->add_option("--count", options->count, "Draw so many shapes by --seed, in place of FILE's")
      ->check(CLI::Range(1, 100000))
      ->excludes(file);
  app->add_option("--filter", common.filter, "Only shapes whose name contains this");
  app->add_option("--layers", common.layers,
                  "Calls of a step; left out: 61 of a latent cache, 30 of another, on the CPU 1")
      ->check(CLI::Range(1, 1000));
  add_reach_options(*app, common);
  app->add_option("--repeats", common.timing.repeats, "Timed steps; the median is reported")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_flag("--no-read", options->no_read, "CUDA: leave out the time of reading alone");
  app->add_flag("--all-kernels", options->all_kernels,
                "Also time every kernel that takes a shape, turn about: are the picked ones the fastest?");
  app->add_flag("--explain", common.explain, "Why this kernel, and why no other");
  app->add_flag("--list", common.list, "Print the shapes' names and stop");
  add_executor_options(*app, common.executor);
  add_seed_option(*app, common.seed);
  add_json_option(*app, common.json);
  app->footer(
      "Each shape is timed in steps of a plan and a model's layers, on CUDA in a graph. ratio is our time "
      "over the best of others in the file.\n"
      "Example: flashlatent bench shapes bench/shapes/h100.json --backend cuda --json shapes.json\n"
      "         flashlatent bench shapes --seed 7 --count 300 --backend cuda");
  app->callback([&action, options] { action = [options] { return run_bench_shapes(*options); }; });
}

}  // namespace flashlatent::tools
