// flashlatent bench numerics: what an FP8 cache costs in accuracy, apart from what the kernel does.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/element.h"
#include "core/fp8_656.h"
#include "core/latent_format.h"
#include "core/message.h"
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
  std::string kv = "fp8_656", products = "auto";
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
};

constexpr Latents kLatents[] = {
    {"normal", "unit variance", [](Engine& engine, int) { return normal(engine); }},
    {"student3", "heavy tails: Student's t, 3 degrees of freedom, unit variance",
     [](Engine& engine, int) { return student(engine); }},
    {"outliers", "unit variance, but each 64th channel 30 times as large",
     [](Engine& engine, int channel) { return normal(engine) * (channel % 64 == 17 ? 30.0F : 1.0F); }},
};
constexpr float kScoreDeviations[] = {1, 4};  // attention spread over many tokens, and on few

/// The same tokens in both formats, and queries.
struct Data {
  DecodeProblem problem;
  DecodeInputs plain, fp8;
  float scale = 1;  // e4m3's: the largest latent becomes 448
  std::vector<std::uint16_t> q, latents, read_back;
  std::vector<std::uint8_t> token_bytes;
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
  for (std::uint16_t& x : data.q) x = float_to_bf16(normal(engine));

  DecodeProblem& problem = data.problem;
  problem.query.batch = options.batch;
  problem.query.heads = options.heads;
  problem.cache.max_pages = static_cast<int>(columns);
  // q . k has the variance |k|^2.
  const double norm = std::sqrt(squares / static_cast<double>(pages * kPageSize));
  problem.options.softmax_scale = static_cast<float>(score_deviation / norm);

  data.lengths.assign(options.batch, options.tokens);
  for (std::int64_t i = 0; i < pages; ++i) data.table.push_back(static_cast<std::int32_t>(i));
  const TensorView latents(data.latents.data(), Dtype::kBF16, {pages, kPageSize, 1, fp8_656::kDim});
  const KvFormat format = options.format();
  const std::int64_t token_bytes = last_extent(format, fp8_656::kDim);
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
  return data;
}

/// |a - b| / |b|, summed up over vectors.
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
  double element = 0;       // of a dequantised latent element
  double cache = 0;         // float64 over the FP8 cache against float64 over bf16
  double cache_lse = 0;     // the same of lse, the largest
  double kernel = 0;        // the kernel over the FP8 cache against float64 over the same bytes
  double plain_kernel = 0;  // the plainest code in the working precision, likewise
  double worst_ratio = 0;   // a row's error over what it may be
  double total = 0;         // the kernel over the FP8 cache against float64 over bf16
  double bf16_kernel = 0;   // the kernel over bf16 against float64 over bf16
};

Result<Errors> measure(Data& data, const NumericsOptions& options, const Executor& executor) {
  DecodeProblem fp8_problem = data.problem;
  fp8_problem.cache.format = options.format();
  fp8_problem.options.products = *products_from_name(options.products);
  FLASHLATENT_RETURN_IF_ERROR(validate(fp8_problem));
  const bool e4m3 = options.format() == KvFormat::kE4m3;
  if (e4m3) data.fp8.kv_scale = {&data.scale, Dtype::kF32, {1}};
  std::vector<runtime::DecodeRun> runs;
  for (auto [problem, inputs] : {std::pair{&data.problem, &data.plain}, {&fp8_problem, &data.fp8}}) {
    FLASHLATENT_ASSIGN_OR_RETURN(runtime::DecodeRun run,
                                 runtime::DecodeRun::create(*problem, *inputs, executor));
    FLASHLATENT_RETURN_IF_ERROR(run.run());
    FLASHLATENT_RETURN_IF_ERROR(run.fetch());
    runs.push_back(std::move(run));
  }
  Errors errors;
  RelativeError element, cache, total, bf16_kernel;
  for (std::size_t i = 0; i < data.latents.size(); ++i) {
    if (!e4m3 && i % fp8_656::kDim >= fp8_656::kLatentDim) continue;  // the RoPE part is as it was
    element.add(bf16_to_float(data.read_back[i]), bf16_to_float(data.latents[i]));
  }
  const auto* bf16_out = static_cast<const std::uint16_t*>(runs[0].out().data);
  const auto* fp8_out = static_cast<const std::uint16_t*>(runs[1].out().data);
  for (int request = 0; request < data.problem.query.batch; ++request) {
    for (int head = 0; head < data.problem.query.heads; ++head) {
      const cpu::ReferenceRow exact = cpu::reference_row(data.problem, data.plain, request, 0, head);
      const cpu::ReferenceRow fp8 = cpu::reference_row(fp8_problem, data.fp8, request, 0, head);
      errors.cache_lse = std::max(errors.cache_lse, std::abs(fp8.lse - exact.lse));
      for (int d = 0; d < data.problem.cache.v_dim; ++d, ++bf16_out, ++fp8_out) {
        cache.add(fp8.out[d], exact.out[d]);
        total.add(bf16_to_float(*fp8_out), exact.out[d]);
        bf16_kernel.add(bf16_to_float(*bf16_out), exact.out[d]);
      }
    }
  }
  const runtime::Comparison kernel = runtime::compare(fp8_problem, data.fp8, runs[1].out(), runs[1].lse());
  errors.element = element.value();
  errors.cache = cache.value();
  errors.kernel = kernel.relative_error;
  errors.plain_kernel = kernel.plain_relative_error;
  errors.worst_ratio = kernel.worst_ratio;
  errors.total = total.value();
  errors.bf16_kernel = bf16_kernel.value();
  return errors;
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
  fmt::print("{:<10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "latents", "scores", "element",
             "cache", "lse", "kernel", "plain", "worst row", "total", "bf16");
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  Progress progress("bench numerics", std::size(kLatents) * std::size(kScoreDeviations));
  bool right = true;
  for (const Latents& latents : kLatents) {
    for (float deviation : kScoreDeviations) {
      Result<Data> data = make_data(options, latents, deviation);
      if (!data.ok()) return fail(data.status());
      Result<Errors> e = measure(*data, options, *executor);
      if (!e.ok()) return fail(e.status());
      progress.clear();
      fmt::print("{:<10} {:>6} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2f} {:>9.2e} {:>9.2e}\n",
                 latents.name, deviation, e->element, e->cache, e->cache_lse, e->kernel, e->plain_kernel,
                 e->worst_ratio, e->total, e->bf16_kernel);
      right = right && e->worst_ratio <= 1;
      results.push_back({{"name", latents.name},
                         {"latents", latents.what},
                         {"kv", options.kv},
                         {"products", options.products},
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
                         {"bf16_kernel_error", e->bf16_kernel}});
      progress.update(static_cast<std::int64_t>(results.size()));
    }
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
  add_executor_options(*numerics, options->executor);
  add_seed_option(*numerics, options->seed);
  add_json_option(*numerics, options->json);
  numerics->footer(
      "Relative errors |a - b| / |b|. element: a dequantised latent; cache: float64 over the FP8 cache\n"
      "against float64 over the bf16 one (lse: largest difference of lse); kernel: the kernel over the\n"
      "FP8 cache against float64 over the same bytes (plain: the plainest code instead; worst row: over\n"
      "what it may be; exit code 1 above 1); total: the kernel over FP8 against float64 over bf16;\n"
      "bf16: the kernel over bf16 against the same. scores: their standard deviation.");
  numerics->callback([&action, options] { action = [options] { return run_bench_numerics(*options); }; });
}

}  // namespace flashlatent::tools
