// flashlatent bench indexer: index_topk(), scores, choice and slots in one call.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "core/index_keys.h"
#include "core/return_if_error.h"
#include "dispatch/select.h"
#include "flashlatent/index_topk.h"
#include "runtime/device_memory.h"
#include "runtime/host_memory.h"
#include "runtime/random_value.h"
#include "runtime/timing.h"
#include "tools/command.h"
#include "tools/machine.h"
#include "tools/progress.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

namespace {

struct IndexerOptions {
  std::string suite = "peers";
  std::string filter;
  int batch = 0;
  int tokens = 1;
  int heads = 64;
  int topk = 2048;
  int page_size = 64;
  int length = 32768;
  int candidates = 0;
  int best_blocks = 0;
  std::string format = "fp8_132";
  runtime::TimingOptions timing;
  std::uint64_t seed = 0;
  std::string json;
  ExecutorOptions executor;
};

struct IndexerCase {
  int batch, tokens, length;
  IndexFormat format = IndexFormat::kFp8_132;
  int candidates = 0;  ///< Blocks of 8.
  int best_blocks = 0;
};

constexpr IndexFormat kFp8 = IndexFormat::kFp8_132, kFp4 = IndexFormat::kMxfp4_68;
constexpr IndexerCase kPeers[] = {{1, 1, 4096, kFp8},          {1, 1, 32768, kFp8},
                                  {1, 1, 131072, kFp8},        {8, 1, 32768, kFp8},
                                  {32, 1, 8192, kFp8},         {64, 1, 32768, kFp8},
                                  {128, 1, 4096, kFp8},        {128, 1, 16384, kFp8},
                                  {128, 1, 65536, kFp8},       {64, 2, 32768, kFp8},
                                  {1, 4096, 8192, kFp8},       {1, 4096, 32768, kFp8},
                                  {1, 1024, 131072, kFp8},     {1, 1, 131072, kFp4},
                                  {64, 1, 32768, kFp4},        {128, 1, 16384, kFp4},
                                  {128, 1, 65536, kFp4},       {64, 1, 16384, kFp4},
                                  {64, 1, 131072, kFp4, 2048}, {64, 1, 16384, kFp8},
                                  {64, 1, 131072, kFp8, 2048}, {64, 1, 32768, kFp8, 0, 2048},
                                  {128, 1, 2048, kFp8}};
constexpr IndexerCase kSmall[] = {
    {1, 1, 4096, kFp8}, {2, 2, 3072, kFp8}, {1, 1, 4096, kFp4}, {1, 16, 3072, kFp8}, {4, 1, 2048, kFp8}};

struct Tensor {
  runtime::Buffer buffer;
  TensorView view;
};

/// One call with tensors on the executor's device. Pages are in random order; every query token sees all
/// tokens of its request.
class Bench {
 public:
  Bench(const IndexerCase& c, const IndexerOptions& options, const Executor& executor)
      : case_(c), options_(options), executor_(executor), columns_((c.length - 1) / options.page_size + 1) {
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      codes_[i] = e4m3::encode(8 * runtime::random_normal(options.seed, i));
    }
  }

  Status allocate() {
    const std::int64_t pages = std::int64_t{case_.batch} * columns_;
    const std::int64_t page_bytes = (index_keys::page_bytes(case_.format, options_.page_size) + 15) / 16 * 16;
    FLASHLATENT_RETURN_IF_ERROR(runtime::check_memory(
        static_cast<double>(pages * page_bytes),
        fmt::format("{} requests of {} index keys", case_.batch, case_.length), executor_));
    FLASHLATENT_RETURN_IF_ERROR(make(cache_, Dtype::kU8, {pages, page_bytes}));
    FLASHLATENT_RETURN_IF_ERROR(fill_cache(pages, page_bytes));
    std::vector<std::int32_t> table(pages), lengths(case_.batch, case_.length);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937_64(options_.seed));
    FLASHLATENT_RETURN_IF_ERROR(upload(table_, Dtype::kI32, {case_.batch, columns_}, table));
    FLASHLATENT_RETURN_IF_ERROR(upload(lengths_, Dtype::kI32, {case_.batch}, lengths));
    const std::int64_t rows = std::int64_t{case_.batch} * case_.tokens;
    std::vector<std::uint8_t> q(rows * options_.heads * kIndexDim);
    std::vector<float> weights(rows * options_.heads);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = code(i + 12345);
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = runtime::random_normal(options_.seed + 2, i);
    FLASHLATENT_RETURN_IF_ERROR(
        upload(q_, Dtype::kU8, {case_.batch, case_.tokens, options_.heads, kIndexDim}, q));
    FLASHLATENT_RETURN_IF_ERROR(
        upload(weights_, Dtype::kF32, {case_.batch, case_.tokens, options_.heads}, weights));
    if (case_.candidates > 0) FLASHLATENT_RETURN_IF_ERROR(make_candidates());
    FLASHLATENT_RETURN_IF_ERROR(make(indices_, Dtype::kI32, {case_.batch, case_.tokens, options_.topk}));
    if (case_.best_blocks > 0) {
      FLASHLATENT_RETURN_IF_ERROR(make(best_, Dtype::kI32, {case_.batch, case_.tokens, case_.best_blocks}));
    }
    FLASHLATENT_ASSIGN_OR_RETURN(const std::size_t bytes,
                                 index_topk_workspace_bytes(inputs(), outputs(), call_options(), executor_));
    workspace_bytes_ = bytes;
    FLASHLATENT_ASSIGN_OR_RETURN(workspace_, runtime::Buffer::allocate(executor_, bytes));
    return runtime::synchronize(executor_);
  }

  Status call() const {
    return index_topk(inputs(), outputs(), call_options(), workspace_.memory(), executor_);
  }
  /// Keys that are looked at, for all query tokens: none where all tokens are chosen.
  double keys() const {
    if (case_.candidates == 0 && case_.best_blocks == 0 && case_.length <= options_.topk) return 0;
    return case_.candidates > 0 ? 8.0 * case_.candidates * case_.batch : double(case_.batch) * case_.length;
  }
  double bytes() const { return keys() * static_cast<double>(index_key_bytes(case_.format)); }
  double operations() const { return 2.0 * keys() * case_.tokens * options_.heads * kIndexDim; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

  std::string name() const {
    std::string name = fmt::format("b{} s_q{} h{} s_k{} topk{} {}", case_.batch, case_.tokens, options_.heads,
                                   case_.length, options_.topk, to_string(case_.format));
    if (case_.candidates > 0) name += fmt::format(" candidates{}", case_.candidates);
    if (case_.best_blocks > 0) name += fmt::format(" best{}", case_.best_blocks);
    return name;
  }

 private:
  /// e4m3 of a normal number.
  std::uint8_t code(std::uint64_t i) const { return codes_[i % codes_.size()]; }

  /// Pages that repeat: as many keys as a request has are random.
  Status fill_cache(std::int64_t pages, std::int64_t page_bytes) {
    const std::int64_t distinct = std::min<std::int64_t>(pages, 262144 / options_.page_size + 1);
    std::vector<std::uint8_t> bytes(distinct * page_bytes);
    for (std::int64_t page = 0; page < distinct; ++page) {
      std::uint8_t* begin = bytes.data() + page * page_bytes;
      for (int key = 0; key < options_.page_size; ++key)
        fill_key(begin, key, page * options_.page_size + key);
    }
    auto* to = static_cast<std::uint8_t*>(cache_.buffer.data());
    for (std::int64_t page = 0; page < pages; page += distinct) {
      const std::int64_t count = std::min(distinct, pages - page);
      FLASHLATENT_RETURN_IF_ERROR(
          runtime::copy_to_device(to + page * page_bytes, bytes.data(), count * page_bytes, executor_));
    }
    return {};
  }
  void fill_key(std::uint8_t* page, int key, std::int64_t number) const {
    std::uint8_t* data = page + index_keys::data_offset(case_.format, key);
    std::uint8_t* scales = page + index_keys::scale_offset(case_.format, options_.page_size, key);
    const std::uint64_t random = runtime::random_bits(options_.seed + 1, static_cast<std::uint64_t>(number));
    if (case_.format == kFp8) {
      for (int i = 0; i < kIndexDim; ++i) data[i] = code(static_cast<std::uint64_t>(number) * kIndexDim + i);
      const float scale = 0.01F * (1 + static_cast<float>(random & 0xFFFF) / 65536);
      std::memcpy(scales, &scale, sizeof(scale));
      return;
    }
    for (int i = 0; i < kIndexDim / 2; ++i) {
      data[i] = static_cast<std::uint8_t>(
          runtime::random_bits(options_.seed + 3, static_cast<std::uint64_t>(number) * 64 + i));
    }
    for (int i = 0; i < 4; ++i) scales[i] = static_cast<std::uint8_t>(120 + (random >> (8 * i) & 3));
  }

  Status make_candidates() {
    const int blocks = (case_.length + 7) / 8;
    std::vector<std::int32_t> chosen, all(blocks);
    std::iota(all.begin(), all.end(), 0);
    std::mt19937_64 engine(options_.seed);
    for (int i = 0; i < case_.batch * case_.tokens; ++i) {
      std::shuffle(all.begin(), all.end(), engine);
      const int count = std::min(case_.candidates, blocks);
      chosen.insert(chosen.end(), all.begin(), all.begin() + count);
      std::sort(chosen.end() - count, chosen.end());
      chosen.insert(chosen.end(), case_.candidates - count, -1);
    }
    return upload(candidates_, Dtype::kI32, {case_.batch, case_.tokens, case_.candidates}, chosen);
  }

  IndexTopkInputs inputs() const {
    IndexTopkInputs inputs;
    inputs.q = q_.view;
    inputs.weights = weights_.view;
    inputs.index_cache = cache_.view;
    inputs.block_table = table_.view;
    inputs.cache_seqlens = lengths_.view;
    inputs.candidates = candidates_.view;
    return inputs;
  }
  IndexTopkOutputs outputs() const {
    IndexTopkOutputs outputs;
    outputs.indices = indices_.view;
    outputs.best_blocks = best_.view;
    return outputs;
  }
  IndexTopkOptions call_options() const {
    return {.format = case_.format, .page_size = options_.page_size, .causal = false};
  }

  Status make(Tensor& tensor, Dtype dtype, std::initializer_list<std::int64_t> shape) const {
    tensor.view = {nullptr, dtype, shape, device_of(executor_)};
    FLASHLATENT_ASSIGN_OR_RETURN(
        tensor.buffer, runtime::Buffer::allocate(executor_, tensor.view.elements() * size_of(dtype)));
    tensor.view.data = tensor.buffer.data();
    return {};
  }
  template <class T>
  Status upload(Tensor& tensor, Dtype dtype, std::initializer_list<std::int64_t> shape,
                const std::vector<T>& values) const {
    FLASHLATENT_RETURN_IF_ERROR(make(tensor, dtype, shape));
    return runtime::copy_to_device(tensor.view.data, values.data(), values.size() * sizeof(T), executor_);
  }

  IndexerCase case_;
  IndexerOptions options_;
  Executor executor_;
  std::int64_t columns_;
  std::vector<std::uint8_t> codes_ = std::vector<std::uint8_t>(1 << 20);
  std::size_t workspace_bytes_ = 0;
  Tensor cache_, table_, lengths_, q_, weights_, candidates_, indices_, best_;
  runtime::Buffer workspace_;
};

std::vector<IndexerCase> cases_of(const IndexerOptions& options) {
  if (options.batch > 0) {
    return {{options.batch, options.tokens, options.length, *index_format_from_name(options.format),
             options.candidates, options.best_blocks}};
  }
  if (options.suite == "small") return {std::begin(kSmall), std::end(kSmall)};
  return {std::begin(kPeers), std::end(kPeers)};
}

int run_bench_indexer(const IndexerOptions& options) {
  Result<Executor> made = make_executor(options.executor);
  if (!made.ok()) return fail(made.status());
  Executor executor = *made;
  if (const Status status = check_cuda_flag("--graph", options.timing.graph, executor); !status.ok()) {
    return fail(status);
  }
  Result<runtime::Stream> stream = runtime::Stream::create(executor);
  if (!stream.ok()) return fail(stream.status());
  executor.stream = stream->get();
  fmt::print("index_topk on {}; source tree {}\n", to_string(executor.backend), source_tree());
  fmt::print("{:<52} {:>10} {:>10} {:>10} {:>9} {:>9} {:>11}\n", "case", "us", "least", "most", "GB/s",
             "TFLOP/s", "workspace");
  const std::vector<IndexerCase> cases = cases_of(options);
  Progress progress("bench indexer", static_cast<std::int64_t>(cases.size()));
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  std::int64_t done = 0;
  for (const IndexerCase& c : cases) {
    progress.update(done++);
    Bench bench(c, options, executor);
    if (bench.name().find(options.filter) == std::string::npos) continue;
    if (const Status status = bench.allocate(); !status.ok()) return fail(status);
    Result<runtime::Timing> timing =
        runtime::time_calls([&] { return bench.call(); }, options.timing, executor);
    if (!timing.ok()) return fail(timing.status());
    const double gbps = bench.bytes() / timing->median * 1e-6;
    const double tflops = bench.operations() / timing->median * 1e-9;
    progress.clear();
    fmt::print("{:<52} {:>10.1f} {:>10.1f} {:>10.1f} {:>9.0f} {:>9.1f} {:>11}\n", bench.name(),
               timing->median * 1e3, timing->least * 1e3, timing->most * 1e3, gbps, tflops,
               bench.workspace_bytes());
    std::fflush(stdout);
    results.push_back({{"name", bench.name()},
                       {"kernel", "index_topk"},
                       {"b", c.batch},
                       {"s_q", c.tokens},
                       {"h_q", options.heads},
                       {"s_k", c.length},
                       {"topk", options.topk},
                       {"format", to_string(c.format)},
                       {"page_size", options.page_size},
                       {"graph", options.timing.graph},
                       {"cold", options.timing.cold},
                       {"ms", timing->median},
                       {"ms_min", timing->least},
                       {"ms_max", timing->most},
                       {"gbps", gbps},
                       {"tflops", tflops},
                       {"workspace_bytes", bench.workspace_bytes()}});
  }
  const nlohmann::ordered_json document = {{"machine", describe_machine(executor)},
                                           {"source_tree", source_tree()},
                                           {"command", command_line()},
                                           {"results", results}};
  if (Status status = write_json(options.json, document); !status.ok()) return fail(status);
  return kRight;
}

}  // namespace

void add_bench_indexer(CLI::App& bench, Action& action) {
  CLI::App* command =
      bench.add_subcommand("indexer", "Scores of index keys, the best tokens and their slots (index_topk)");
  auto options = std::make_shared<IndexerOptions>();
  command->add_option("--suite", options->suite, "peers (needs 2 GB) or small")
      ->check(CLI::IsMember({"peers", "small"}))
      ->capture_default_str();
  command->add_option("--filter", options->filter, "Only cases whose name contains this");
  command->add_option("--batch", options->batch, "One case instead of the suite: its requests")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--query-tokens", options->tokens, "Query tokens of each request")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--length", options->length, "Tokens of each request")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--format", options->format, "Of the index keys")
      ->check(CLI::IsMember({"fp8_132", "mxfp4_68"}))
      ->capture_default_str();
  command
      ->add_option("--candidates", options->candidates,
                   "Blocks of 8 tokens that query tokens look at; 0: all")
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("--best-blocks", options->best_blocks, "Blocks of 8 tokens to choose as well; 0: none")
      ->check(CLI::Range(0, kMaxIndexTopk));
  command->add_option("--heads", options->heads, "Heads, a multiple of 8")
      ->check(CLI::Range(8, 128))
      ->capture_default_str();
  command->add_option("--topk", options->topk, "Tokens to choose")
      ->check(CLI::Range(1, kMaxIndexTopk))
      ->capture_default_str();
  command->add_option("--page-size", options->page_size, "Index keys a page")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--graph", options->timing.graph, "CUDA: replay a graph of up to 20 calls");
  command->add_flag("--cold", options->timing.cold, "Empty the caches before each call");
  command->add_option("--repeats", options->timing.repeats, "Timed calls; the median is reported")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  add_executor_options(*command, options->executor);
  add_seed_option(*command, options->seed);
  add_json_option(*command, options->json);
  command->footer(
      "Every query token sees all tokens of its request. GB/s counts the keys once a request.\n"
      "Example: flashlatent bench indexer --backend cuda --graph --json indexer.json");
  command->callback([&action, options] { action = [options] { return run_bench_indexer(*options); }; });
}

}  // namespace flashlatent::tools
