// flashlatent bench numerics: the accuracy that an FP8 cache costs, apart from what a kernel adds.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>
#include <utility>

#include "core/element.h"
#include "core/formats/e4m3_latent.h"
#include "core/formats/formats.h"
#include "core/formats/fp8_656.h"
#include "core/message.h"
#include "cpu/e4m3_tensor_cores.h"
#include "cpu/parallel.h"
#include "cpu/reference.h"
#include "flashlatent/kv_cache.h"
#include "runtime/compare.h"
#include "runtime/decode_run.h"
#include "runtime/host_memory.h"
#include "tools/command.h"
#include "tools/machine.h"
#include "tools/progress.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

namespace {

constexpr int kPageSize = 64;

struct NumericsOptions {
  int batch = 4;
  int heads = 16;
  int tokens = 4096;
  std::uint64_t seed = 0;
  std::string kv = "fp8_656", products = "auto", latents = "all";
  float scores = 0;  // their standard deviation; 0: each of kScoreDeviations
  bool e4m3_queries = false;
  int chains = 0;  // sums by which tensor cores add up a score; 0: as mla_64_e4m3 does
  std::string json;
  ExecutorOptions executor;

  KvFormat format() const { return *kv_format_from_name(kv); }
};

using Engine = std::mt19937_64;

float normal(Engine& engine) {
  std::normal_distribution<float> distribution;
  return distribution(engine);
}

/// Student's t with 3 degrees of freedom, scaled to variance 1.
float student(Engine& engine) {
  float squares = 0;
  for (int i = 0; i < 3; ++i) {
    const float x = normal(engine);
    squares += x * x;
  }
  return normal(engine) / std::sqrt(squares / 3) / std::sqrt(3.0F);
}

struct Latents {
  const char* name;
  const char* what;
  float (*element)(Engine&, int channel);
  bool common = false;  // tokens have a direction in common, which queries have, too
};

/// The common direction.
float direction(int channel) {
  return channel % 2 == 0 ? 1.0F : -1.0F;
}

constexpr Latents kLatents[] = {
    {"normal", "unit variance", [](Engine& engine, int) { return normal(engine); }},
    {"student3", "heavy tails: Student's t, 3 degrees of freedom, unit variance",
     [](Engine& engine, int) { return student(engine); }},
    {"outliers", "unit variance, but each 64th channel 30 times as large",
     [](Engine& engine, int channel) { return normal(engine) * (channel % 64 == 17 ? 30.0F : 1.0F); }},
    {"common", "unit variance about a direction of length 24 that all tokens and queries have",
     [](Engine& engine, int channel) { return normal(engine) + direction(channel); }, true},
};
constexpr float kScoreDeviations[] = {1, 4};  // attention over many tokens, and over few

std::vector<std::string> latents_names() {
  std::vector<std::string> names = {"all"};
  for (const Latents& latents : kLatents) names.emplace_back(latents.name);
  return names;
}

/// The same tokens in both formats, and queries.
struct Data {
  DecodeProblem problem;
  DecodeInputs plain, fp8;
  float scale = 1;  // of e4m3: the largest latent becomes 448
  std::vector<std::uint16_t> q, latents, read_back;
  std::vector<std::uint8_t> token_bytes, q_codes;
  std::vector<std::int32_t> table, lengths;
};

Result<Data> make_data(const NumericsOptions& options, const Latents& kind, float score_deviation) {
  Data data;
  Engine engine(options.seed);
  const std::int64_t columns = (options.tokens + kPageSize - 1) / kPageSize, pages = columns * options.batch;
  data.latents.resize(pages * kPageSize * fp8_656::kDim);
  double squares = 0;
  float amax = 0;
  for (std::size_t i = 0; i < data.latents.size(); ++i) {
    data.latents[i] = float_to_bf16(kind.element(engine, static_cast<int>(i % fp8_656::kDim)));
    squares += std::pow(bf16_to_float(data.latents[i]), 2);
    amax = std::max(amax, std::abs(bf16_to_float(data.latents[i])));
  }
  data.q.resize(std::int64_t{options.batch} * options.heads * fp8_656::kDim);
  for (std::size_t i = 0; i < data.q.size(); ++i) {
    float x = normal(engine) + (kind.common ? direction(static_cast<int>(i % fp8_656::kDim)) : 0.0F);
    if (options.e4m3_queries) {
      data.q_codes.push_back(fp8_656::encode(x));
      x = fp8_656::decode(data.q_codes.back());
    }
    data.q[i] = float_to_bf16(x);
  }

  DecodeProblem& problem = data.problem;
  problem.query.batch = options.batch;
  problem.query.heads = options.heads;
  problem.cache.max_pages = static_cast<int>(columns);
  // q . k has variance |k|^2.
  const double norm = std::sqrt(squares / static_cast<double>(pages * kPageSize));
  problem.options.softmax_scale = static_cast<float>(score_deviation / norm);

  data.lengths.assign(options.batch, options.tokens);
  for (std::int64_t i = 0; i < pages; ++i) data.table.push_back(static_cast<std::int32_t>(i));
  const TensorView latents(data.latents.data(), Dtype::kBF16, {pages, kPageSize, 1, fp8_656::kDim});
  const KvFormat format = options.format();
  const std::int64_t token_bytes = format_of(format, ScalePlace::kAuto).last_extent(fp8_656::kDim);
  data.token_bytes.resize(pages * kPageSize * token_bytes);
  data.read_back.resize(data.latents.size());
  const TensorView fp8(data.token_bytes.data(), Dtype::kU8, {pages, kPageSize, 1, token_bytes});
  ConstTensorView scale;
  if (format == KvFormat::kE4m3) {
    data.scale = amax / fp8_656::kLargest;
    scale = {&data.scale, Dtype::kF32, {1}};
  }
  TensorView read_back = latents;
  read_back.data = data.read_back.data();
  FLASHLATENT_RETURN_IF_ERROR(convert_cache(latents, fp8, Executor{}, {}, scale));
  FLASHLATENT_RETURN_IF_ERROR(convert_cache(fp8, read_back, Executor{}, scale));

  data.plain.q = {data.q.data(), Dtype::kBF16, {options.batch, 1, options.heads, fp8_656::kDim}};
  data.plain.kv_cache = latents;
  data.plain.block_table = {data.table.data(), Dtype::kI32, {options.batch, columns}};
  data.plain.cache_seqlens = {data.lengths.data(), Dtype::kI32, {options.batch}};
  data.fp8 = data.plain;
  data.fp8.kv_cache = fp8;
  if (options.e4m3_queries) {
    data.fp8.q.data = data.q_codes.data();
    data.fp8.q.dtype = Dtype::kU8;
  }
  return data;
}

/// a - b| / |b| over many vectors.
class RelativeError {
 public:
  template <class A, class B>
  void add(A a, B b) {
    difference_ += (double{a} - double{b}) * (double{a} - double{b});
    norm_ += double{b} * double{b};
  }
  double value() const { return norm_ > 0 ? std::sqrt(difference_ / norm_) : 0; }

 private:
  double difference_ = 0, norm_ = 0;
};

struct Errors {
  double element = 0;    // of a dequantised latent element
  double cache = 0;      // float64 over the FP8 cache against float64 over bf16
  double cache_lse = 0;  // the same of lse, the largest
  double kernel = 0;     // the kernel over the FP8 cache against float64 over the same bytes
  // the plainest code in the working precision, compared in the same way
  double plain_kernel = 0;
  double worst_ratio = 0;                // the largest error of a row over its tolerance
  double kernel_lse = 0, plain_lse = 0;  // lse of the kernel and of the plainest code, the largest error
  double tensor_cores = 0, tensor_cores_lse = 0;  // e4m3 products as Hopper's tensor cores compute them
  double total = 0;                               // the kernel over the FP8 cache against float64 over bf16
  double bf16_kernel = 0;                         // the kernel over bf16 against float64 over bf16
};

int score_chains(const NumericsOptions& options) {
  if (options.chains > 0) return options.chains;
  return e4m3_latent::score_chains(options.heads);
}

Result<Errors> measure(Data& data, const NumericsOptions& options, const Executor& executor) {
  DecodeProblem fp8_problem = data.problem;
  fp8_problem.cache.format = options.format();
  fp8_problem.options.products = *products_from_name(options.products);
  fp8_problem.query.e4m3 = options.e4m3_queries;
  FLASHLATENT_RETURN_IF_ERROR(validate(fp8_problem));
  const bool e4m3 = options.format() == KvFormat::kE4m3;
  if (e4m3) data.fp8.kv_scale = {&data.scale, Dtype::kF32, {1}};
  std::vector<runtime::DecodeRun> runs;
  Executor any_kernel = executor;  // --kernel names that of the FP8 cache
  any_kernel.kernel.clear();
  for (auto [problem, inputs, on] : {std::tuple{&data.problem, &data.plain, &std::as_const(any_kernel)},
                                     {&fp8_problem, &data.fp8, &executor}}) {
    FLASHLATENT_ASSIGN_OR_RETURN(runtime::DecodeRun run, runtime::DecodeRun::create(*problem, *inputs, *on));
    FLASHLATENT_RETURN_IF_ERROR(run.run());
    FLASHLATENT_RETURN_IF_ERROR(run.fetch());
    runs.push_back(std::move(run));
  }
  Errors errors;
  RelativeError element, cache, total, bf16_kernel, tensor_cores;
  for (std::size_t i = 0; i < data.latents.size(); ++i) {
    if (!e4m3 && i % fp8_656::kDim >= fp8_656::kLatentDim) continue;  // the RoPE part is not quantised
    element.add(bf16_to_float(data.read_back[i]), bf16_to_float(data.latents[i]));
  }
  const auto* bf16_out = static_cast<const std::uint16_t*>(runs[0].out().data);
  const auto* fp8_out = static_cast<const std::uint16_t*>(runs[1].out().data);
  const int heads = fp8_problem.query.heads, v_dim = fp8_problem.cache.v_dim;
  const int chains = score_chains(options);
  struct Row {
    cpu::ReferenceRow exact, fp8;
    cpu::E4m3Row tensor_cores;
  };
  std::vector<Row> rows(data.problem.query.batch * heads);
  cpu::parallel_for_dynamic(
      static_cast<std::int64_t>(rows.size()), cpu::hardware_threads(), [&](std::int64_t i) {
        const int request = static_cast<int>(i) / heads, head = static_cast<int>(i) % heads;
        rows[i].exact = cpu::reference_row(data.problem, data.plain, request, 0, head);
        rows[i].fp8 = cpu::reference_row(fp8_problem, data.fp8, request, 0, head);
        if (!fp8_problem.fp8_products()) return;
        rows[i].tensor_cores = cpu::e4m3_row(fp8_problem, data.fp8, request, 0, head, chains);
      });
  const auto raise = [](double& largest, double x) { largest = std::max(largest, std::abs(x)); };
  for (const auto& [exact, fp8, tensor_core_row] : rows) {
    raise(errors.cache_lse, fp8.lse - exact.lse);
    raise(errors.plain_lse, fp8.plain_lse - fp8.lse);
    if (fp8_problem.fp8_products()) raise(errors.tensor_cores_lse, tensor_core_row.lse - fp8.lse);
    for (int d = 0; d < v_dim; ++d, ++bf16_out, ++fp8_out) {
      cache.add(fp8.out[d], exact.out[d]);
      total.add(bf16_to_float(*fp8_out), exact.out[d]);
      bf16_kernel.add(bf16_to_float(*bf16_out), exact.out[d]);
      if (fp8_problem.fp8_products()) {
        tensor_cores.add(bf16_to_float(float_to_bf16(tensor_core_row.out[d])), fp8.out[d]);
      }
    }
  }
  const runtime::Comparison kernel = runtime::compare(fp8_problem, data.fp8, runs[1].out(), runs[1].lse());
  errors.element = element.value();
  errors.cache = cache.value();
  errors.kernel = kernel.relative_error;
  errors.plain_kernel = kernel.plain_relative_error;
  errors.worst_ratio = kernel.worst_ratio;
  errors.kernel_lse = kernel.lse_error;
  errors.tensor_cores = tensor_cores.value();
  errors.total = total.value();
  errors.bf16_kernel = bf16_kernel.value();
  return errors;
}

struct Case {
  const Latents* latents;
  float deviation;
};

std::vector<Case> cases_of(const NumericsOptions& options) {
  std::vector<Case> cases;
  for (const Latents& latents : kLatents) {
    if (options.latents != "all" && options.latents != latents.name) continue;
    for (float deviation : kScoreDeviations) {
      if (options.scores == 0) cases.push_back({&latents, deviation});
    }
    if (options.scores > 0) cases.push_back({&latents, options.scores});
  }
  return cases;
}

int run_bench_numerics(const NumericsOptions& options) {
  Result<Executor> executor = make_executor(options.executor);
  const double tokens = std::ceil(static_cast<double>(options.tokens) / kPageSize) * kPageSize;
  const double bytes =
      options.batch * tokens * (4.0 * fp8_656::kDim + fp8_656::kTokenBytes);  // three caches at most
  const Status fits = runtime::check_host_memory(
      bytes, fmt::format("--batch {} of --tokens {}", options.batch, options.tokens));
  if (!fits.ok()) return fail(fits);
  if (!executor.ok()) return fail(executor.status());
  if (options.e4m3_queries && options.format() != KvFormat::kE4m3) {
    return fail(
        invalid_argument("--e4m3-queries is given and --kv is ", options.kv, "; e4m3 is accepted with it"));
  }
  const bool fp8_products = options.products == "fp8" || (options.products == "auto" && options.e4m3_queries);
  fmt::print("{:<10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}", "latents", "scores",
             "element", "cache", "lse", "kernel", "plain", "its lse", "plain", "worst row", "total", "bf16");
  if (fp8_products) fmt::print(" {:>9} {:>9}", "tensor c.", "its lse");
  fmt::print("\n");
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  const auto cases = cases_of(options);
  Progress progress("bench numerics", static_cast<std::int64_t>(cases.size()));
  bool right = true;
  for (const auto& [latents, deviation] : cases) {
    Result<Data> data = make_data(options, *latents, deviation);
    if (!data.ok()) return fail(data.status());
    Result<Errors> e = measure(*data, options, *executor);
    if (!e.ok()) return fail(e.status());
    progress.clear();
    fmt::print(
        "{:<10} {:>6} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2f} {:>9.2e} "
        "{:>9.2e}",
        latents->name, deviation, e->element, e->cache, e->cache_lse, e->kernel, e->plain_kernel,
        e->kernel_lse, e->plain_lse, e->worst_ratio, e->total, e->bf16_kernel);
    if (fp8_products) fmt::print(" {:>9.2e} {:>9.2e}", e->tensor_cores, e->tensor_cores_lse);
    fmt::print("\n");
    right = right && e->worst_ratio <= 1;
    results.push_back({{"name", latents->name},
                       {"latents", latents->what},
                       {"kv", options.kv},
                       {"products", options.products},
                       {"q", options.e4m3_queries ? "e4m3" : "bf16"},
                       {"score_deviation", deviation},
                       {"b", options.batch},
                       {"h_q", options.heads},
                       {"s_k", options.tokens},
                       {"element_error", e->element},
                       {"cache_error", e->cache},
                       {"cache_lse_error", e->cache_lse},
                       {"kernel_error", e->kernel},
                       {"plain_kernel_error", e->plain_kernel},
                       {"worst_ratio", e->worst_ratio},
                       {"total_error", e->total},
                       {"bf16_kernel_error", e->bf16_kernel},
                       {"kernel_lse_error", e->kernel_lse},
                       {"plain_lse_error", e->plain_lse}});
    if (fp8_products) {
      results.back()["score_chains"] = score_chains(options);
      results.back()["tensor_cores_error"] = e->tensor_cores;
      results.back()["tensor_cores_lse_error"] = e->tensor_cores_lse;
    }
    progress.update(static_cast<std::int64_t>(results.size()));
  }
  const nlohmann::ordered_json document = {{"machine", describe_machine(*executor)},
                                           {"source_tree", source_tree()},
                                           {"command", command_line()},
                                           {"results", results}};
  if (Status status = write_json(options.json, document); !status.ok()) return fail(status);
  return right ? kRight : kWrongResult;
}

}  // namespace

void add_bench_numerics(CLI::App& bench, Action& action) {
  CLI::App* numerics = bench.add_subcommand("numerics", "What an FP8 cache costs in accuracy");
  auto options = std::make_shared<NumericsOptions>();
  auto add = [&](const char* flag, int& value, const char* help, int most) {
    numerics->add_option(flag, value, help)->check(CLI::Range(1, most))->capture_default_str();
  };
  add("--batch", options->batch, "Requests", 1 << 10);
  add("--heads", options->heads, "h_q", 1 << 10);
  add("--tokens", options->tokens, "s_k of each request", 1 << 20);
  numerics->add_option("--kv", options->kv, "The FP8 cache")
      ->check(CLI::IsMember({"fp8_656", "e4m3"}))
      ->capture_default_str();
  numerics->add_option("--products", options->products, "With --kv e4m3: what is multiplied")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}))
      ->capture_default_str();
  numerics->add_flag("--e4m3-queries", options->e4m3_queries, "With --kv e4m3: queries of e4m3, scale 1");
  numerics->add_option("--latents", options->latents, "One kind, or all")
      ->check(CLI::IsMember(latents_names()))
      ->capture_default_str();
  numerics->add_option("--scores", options->scores, "The scores' standard deviation; without it 1 and 4")
      ->check(number_between(1e-3, 100));
  numerics
      ->add_option("--chains", options->chains,
                   "tensor c.: in so many sums a score is added up; without it as in mla_64_e4m3")
      ->check(CLI::Range(1, 18));
  add_executor_options(*numerics, options->executor);
  add_seed_option(*numerics, options->seed);
  add_json_option(*numerics, options->json);
  numerics->footer(
      "Relative errors |a - b| / |b|. element: a dequantised latent; cache: float64 over the FP8 cache\n"
      "against float64 over the bf16 one (lse: largest difference of lse); kernel: the kernel over the\n"
      "FP8 cache against float64 over the same bytes (plain: the plainest code instead; its lse and plain:\n"
      "the largest difference of lse; worst row: over what it may be; exit code 1 above 1); total: the\n"
      "kernel over FP8 against float64 over bf16; bf16: the kernel over bf16 against the same; tensor c.:\n"
      "e4m3 products as Hopper's tensor cores add them, emulated on the CPU. scores: their standard\n"
      "deviation. --kernel names the one over the FP8 cache.");
  numerics->callback([&action, options] { action = [options] { return run_bench_numerics(*options); }; });
}

}  // namespace flashlatent::tools
