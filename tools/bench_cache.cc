// flashlatent bench cache: operations on KV caches beside the copy bandwidth of the same run.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "core/formats/fp8_656.h"
#include "core/message.h"
#include "dispatch/select.h"
#include "flashlatent/kv_cache.h"
#include "runtime/bench_input.h"
#include "runtime/host_memory.h"
#include "runtime/timing.h"
#include "tools/command.h"
#include "tools/machine.h"
#include "tools/progress.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

namespace {

struct BenchCacheOptions {
  int tokens = 65536;
  int page_size = 64;
  int batch = 16;
  runtime::TimingOptions timing;
  std::uint64_t seed = 0;
  std::string json;
  ExecutorOptions executor;
};

/// A cache or rows, on the executor's device.
struct Tensor {
  runtime::Buffer buffer;
  TensorView view;
};

/// Keys and values of two KV heads of 128: about as many bytes as a latent row.
struct KeyValues {
  Tensor keys, values;

  KeyValueCache view() const { return {keys.view, values.view}; }
};

constexpr double kPlainBytes = 2.0 * fp8_656::kDim, kFp8Bytes = fp8_656::kTokenBytes;
constexpr std::int64_t kKvHeads = 2, kKvDim = 128;
constexpr double kKvBytes = 2.0 * 2 * kKvHeads * kKvDim, kKvFp8Bytes = kKvBytes / 2;

struct Operation {
  const char* name;
  const char* from;
  const char* to;
  double bytes;  // of a token, read plus written
  std::function<Status()> call;
};

/// The tensors of all operations: caches of `tokens` tokens in each format; slots and pages in random order.
class Bench {
 public:
  static Result<Bench> create(const BenchCacheOptions& options, const Executor& executor) {
    Bench bench(options, executor);
    FLASHLATENT_RETURN_IF_ERROR(bench.allocate());
    return bench;
  }

  std::vector<Operation> operations() const {
    auto append = [this](const Tensor& to) {
      return [this, &to] {
        ConstTensorView latent = rows_.view, rope = rows_.view;
        latent.shape[1] = fp8_656::kLatentDim;
        rope.shape[1] = fp8_656::kRopeDim;
        rope.data = static_cast<const std::uint16_t*>(rows_.view.data) + fp8_656::kLatentDim;
        return append_latent(latent, rope, slots_.view, to.view, executor_);
      };
    };
    auto convert = [this](const Tensor& from, const Tensor& to) {
      return [this, &from, &to] { return convert_cache(from.view, to.view, executor_); };
    };
    auto gather = [this](const Tensor& from, const Tensor& to) {
      return [this, &from, &to] {
        TensorView rows = to.view;  // (tokens, 1, d): the cache's memory, page after page
        rows.shape = {tokens_, 1, to.view.shape[3]};
        rows.strides = {to.view.shape[3], to.view.shape[3], 1};
        rows.rank = 3;
        return gather_cache(from.view, table_.view, ends_.view, {}, rows, executor_);
      };
    };
    auto copy = [this](const Tensor& from, const Tensor& to) {
      return [this, &from, &to] { return copy_pages(from.view, to.view, pairs_.view, executor_); };
    };
    auto append_kv = [this](const KeyValues& to) {
      return [this, &to] {
        return flashlatent::append_kv(kv_rows_.keys.view, kv_rows_.values.view, slots_.view, to.view(),
                                      executor_);
      };
    };
    auto gather_kv = [this](const KeyValues& from) {
      return [this, &from] {
        return flashlatent::gather_kv(from.view(), table_.view, ends_.view, {}, kv_rows_.keys.view,
                                      kv_rows_.values.view, executor_);
      };
    };
    auto convert_kv = [this](const KeyValues& from, const KeyValues& to) {
      return [this, &from, &to] { return flashlatent::convert_kv(from.view(), to.view(), executor_); };
    };
    const double plain = kPlainBytes, fp8 = kFp8Bytes, kv = kKvBytes, kv_fp8 = kKvFp8Bytes;
    return {
        {"copy", "bf16", "bf16", 2 * plain,
         [this] {
           return runtime::copy_on_device(other_.buffer.data(), plain_.buffer.data(), plain_.buffer.size(),
                                          executor_);
         }},
        {"append", "bf16", "bf16", 2 * plain, append(other_)},
        {"append", "bf16", "fp8_656", plain + fp8, append(fp8_)},
        {"quantise", "bf16", "fp8_656", plain + fp8, convert(plain_, fp8_)},
        {"dequantise", "fp8_656", "bf16", plain + fp8, convert(fp8_, other_)},
        {"convert", "bf16", "fp16", 2 * plain, convert(plain_, fp16_)},
        {"gather", "bf16", "bf16", 2 * plain, gather(plain_, other_)},
        {"gather", "fp8_656", "fp8_656", 2 * fp8, gather(fp8_, other_fp8_)},
        {"gather", "fp8_656", "bf16", plain + fp8, gather(fp8_, other_)},
        {"copy_pages", "bf16", "bf16", 2 * plain, copy(plain_, other_)},
        {"copy_pages", "fp8_656", "fp8_656", 2 * fp8, copy(fp8_, other_fp8_)},
        {"append_kv", "rows", "separate", 2 * kv, append_kv(separate_)},
        {"append_kv", "rows", "packed", 2 * kv, append_kv(packed_)},
        {"append_kv", "rows", "packed e4m3", kv + kv_fp8, append_kv(packed_fp8_)},
        {"gather_kv", "separate", "rows", 2 * kv, gather_kv(separate_)},
        {"gather_kv", "packed", "rows", 2 * kv, gather_kv(packed_)},
        {"gather_kv", "packed e4m3", "rows", kv + kv_fp8, gather_kv(packed_fp8_)},
        {"convert_kv", "separate", "packed", 2 * kv, convert_kv(separate_, packed_)},
        {"convert_kv", "packed", "packed e4m3", kv + kv_fp8, convert_kv(packed_, packed_fp8_)},
    };
  }

  std::int64_t tokens() const { return tokens_; }

 private:
  Bench(const BenchCacheOptions& options, const Executor& executor)
      : options_(options),
        executor_(executor),
        pages_((options.tokens + options.page_size - 1) / options.page_size),
        tokens_(pages_ * options.page_size) {}

  Status allocate() {
    const std::int64_t size = options_.page_size;
    for (auto [tensor, dtype] : {std::pair{&plain_, Dtype::kBF16},
                                 {&other_, Dtype::kBF16},
                                 {&fp16_, Dtype::kF16},
                                 {&fp8_, Dtype::kU8},
                                 {&other_fp8_, Dtype::kU8}}) {
      const int last = dtype == Dtype::kU8 ? fp8_656::kTokenBytes : fp8_656::kDim;
      FLASHLATENT_RETURN_IF_ERROR(make(*tensor, dtype, {pages_, size, 1, last}));
      FLASHLATENT_RETURN_IF_ERROR(runtime::fill(tensor->buffer.data(), 0, tensor->buffer.size(), executor_));
    }
    FLASHLATENT_RETURN_IF_ERROR(make(rows_, Dtype::kBF16, {tokens_, fp8_656::kDim}));
    for (const Tensor* tensor : {&plain_, &rows_}) {
      FLASHLATENT_RETURN_IF_ERROR(runtime::fill_normal(tensor->buffer.data(), tokens_ * fp8_656::kDim,
                                                       Dtype::kBF16, 1, options_.seed, executor_));
    }
    FLASHLATENT_RETURN_IF_ERROR(convert_cache(plain_.view, fp8_.view, executor_));
    FLASHLATENT_RETURN_IF_ERROR(allocate_keys_and_values());

    std::mt19937_64 engine(options_.seed);
    std::vector<std::int32_t> pages(pages_), slots, pairs, ends;
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), engine);
    // Tokens are appended page by page, as prefill does, but the pages are in random order.
    for (std::int64_t t = 0; t < tokens_; ++t) {
      slots.push_back(static_cast<std::int32_t>(pages[t / size] * size + t % size));
    }
    for (std::int64_t i = 0; i < pages_; ++i) {
      pairs.push_back(static_cast<std::int32_t>(i));
      pairs.push_back(pages[i]);
    }
    const std::int64_t batch = std::min<std::int64_t>(options_.batch, pages_), columns = pages_ / batch;
    for (std::int64_t i = 0; i <= batch; ++i) {
      ends.push_back(static_cast<std::int32_t>(i < batch ? i * columns * size : tokens_));
    }
    // The last request gets the rest of the tokens. In the page table the rows of the others run on into the
    // next request's pages.
    const std::int64_t widest = pages_ - (batch - 1) * columns;
    std::vector<std::int32_t> table;
    for (std::int64_t i = 0; i < batch; ++i) {
      for (std::int64_t j = 0; j < widest; ++j) table.push_back(pages[std::min(i * columns + j, pages_ - 1)]);
    }
    FLASHLATENT_RETURN_IF_ERROR(upload(slots_, {tokens_}, slots));
    FLASHLATENT_RETURN_IF_ERROR(upload(pairs_, {pages_, 2}, pairs));
    FLASHLATENT_RETURN_IF_ERROR(upload(ends_, {batch + 1}, ends));
    FLASHLATENT_RETURN_IF_ERROR(upload(table_, {batch, widest}, table));
    return runtime::synchronize(executor_);
  }

  Status allocate_keys_and_values() {
    const std::int64_t size = options_.page_size;
    for (KeyValues* cache : {&separate_, &packed_, &packed_fp8_}) {
      const bool fp8 = cache == &packed_fp8_;
      const Dtype dtype = fp8 ? Dtype::kU8 : Dtype::kBF16;
      const std::int64_t x = fp8 ? 16 : 8;  // 16 bytes of elements
      if (cache == &separate_) {
        FLASHLATENT_RETURN_IF_ERROR(make(cache->keys, dtype, {pages_, size, kKvHeads, kKvDim}));
        FLASHLATENT_RETURN_IF_ERROR(make(cache->values, dtype, {pages_, size, kKvHeads, kKvDim}));
      } else {
        FLASHLATENT_RETURN_IF_ERROR(make(cache->keys, dtype, {pages_, kKvHeads, kKvDim / x, size, x}));
        FLASHLATENT_RETURN_IF_ERROR(make(cache->values, dtype, {pages_, kKvHeads, kKvDim, size}));
      }
    }
    for (Tensor* rows : {&kv_rows_.keys, &kv_rows_.values}) {
      FLASHLATENT_RETURN_IF_ERROR(make(*rows, Dtype::kBF16, {tokens_, kKvHeads, kKvDim}));
      FLASHLATENT_RETURN_IF_ERROR(runtime::fill_normal(rows->buffer.data(), rows->view.elements(),
                                                       Dtype::kBF16, 1, options_.seed, executor_));
    }
    return {};
  }

  Status make(Tensor& tensor, Dtype dtype, std::initializer_list<std::int64_t> shape) const {
    tensor.view = {nullptr, dtype, shape, device_of(executor_)};
    FLASHLATENT_ASSIGN_OR_RETURN(
        tensor.buffer, runtime::Buffer::allocate(executor_, tensor.view.elements() * size_of(dtype)));
    tensor.view.data = tensor.buffer.data();
    return {};
  }

  Status upload(Tensor& tensor, std::initializer_list<std::int64_t> shape,
                const std::vector<std::int32_t>& values) const {
    FLASHLATENT_RETURN_IF_ERROR(make(tensor, Dtype::kI32, shape));
    return runtime::copy_to_device(tensor.view.data, values.data(), values.size() * sizeof(values[0]),
                                   executor_);
  }

  BenchCacheOptions options_;
  Executor executor_;
  std::int64_t pages_, tokens_;
  Tensor plain_, other_, fp16_, fp8_, other_fp8_, rows_, slots_, pairs_, ends_, table_;
  KeyValues separate_, packed_, packed_fp8_, kv_rows_;
};

/// Memory for the tensors of Bench: rows and caches of bf16 and fp16, two of fp8_656, keys and values.
Status check_memory_for(const BenchCacheOptions& options, const Executor& executor) {
  constexpr double kToken = 4 * kPlainBytes + 2 * kFp8Bytes + 3 * kKvBytes + kKvFp8Bytes;
  const double pages = std::ceil(static_cast<double>(options.tokens) / options.page_size);
  return runtime::check_memory(pages * options.page_size * kToken,
                               fmt::format("--tokens {} in pages of {}", options.tokens, options.page_size),
                               executor);
}

int run_bench_cache(const BenchCacheOptions& options) {
  Result<Executor> made = make_executor(options.executor);
  if (!made.ok()) return fail(made.status());
  Executor executor = *made;
  if (const Status status = check_cuda_flag("--graph", options.timing.graph, executor); !status.ok()) {
    return fail(status);
  }
  Result<runtime::Stream> stream = runtime::Stream::create(executor);
  if (!stream.ok()) return fail(stream.status());
  executor.stream = stream->get();
  if (const Status status = check_memory_for(options, executor); !status.ok()) return fail(status);
  Result<Bench> bench = Bench::create(options, executor);
  if (!bench.ok()) return fail(bench.status());

  fmt::print("{} tokens in pages of {}, on {}; source tree {}\n", bench->tokens(), options.page_size,
             to_string(executor.backend), source_tree());
  fmt::print("{:<12} {:<11} {:<11} {:>9} {:>9} {:>9} {:>8} {:>6}\n", "operation", "from", "to", "ms", "least",
             "most", "GB/s", "copy%");
  const std::vector<Operation> operations = bench->operations();
  Progress progress("bench cache", static_cast<std::int64_t>(operations.size()));
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  double copy_gbps = 0;  // of the first operation
  for (const Operation& operation : operations) {
    Result<runtime::Timing> timing = runtime::time_calls(operation.call, options.timing, executor);
    if (!timing.ok()) return fail(timing.status());
    const double gbps = operation.bytes * static_cast<double>(bench->tokens()) / timing->median * 1e-6;
    if (copy_gbps == 0) copy_gbps = gbps;
    progress.clear();
    fmt::print("{:<12} {:<11} {:<11} {:>9.4f} {:>9.4f} {:>9.4f} {:>8.1f} {:>6.1f}\n", operation.name,
               operation.from, operation.to, timing->median, timing->least, timing->most, gbps,
               100 * gbps / copy_gbps);
    std::fflush(stdout);
    results.push_back({{"name", operation.name},
                       {"from", operation.from},
                       {"to", operation.to},
                       {"tokens", bench->tokens()},
                       {"page_size", options.page_size},
                       {"graph", options.timing.graph},
                       {"cold", options.timing.cold},
                       {"ms", timing->median},
                       {"ms_min", timing->least},
                       {"ms_max", timing->most},
                       {"repeats", timing->repeats},
                       {"gbps", gbps},
                       {"copy_pct", 100 * gbps / copy_gbps}});
    progress.update(static_cast<std::int64_t>(results.size()));
  }
  const nlohmann::ordered_json document = {{"machine", describe_machine(executor)},
                                           {"source_tree", source_tree()},
                                           {"command", command_line()},
                                           {"roof", {{"copy_tbps", copy_gbps * 1e-3}}},
                                           {"results", results}};
  if (Status status = write_json(options.json, document); !status.ok()) return fail(status);
  return kRight;
}

}  // namespace

void add_bench_cache(CLI::App& bench, Action& action) {
  CLI::App* cache = bench.add_subcommand("cache", "Append, quantise, dequantise, gather and copy pages");
  auto options = std::make_shared<BenchCacheOptions>();
  cache->add_option("--tokens", options->tokens, "Tokens of a call; rounded up to whole pages")
      ->check(CLI::Range(1, 1 << 26))
      ->capture_default_str();
  cache->add_option("--page-size", options->page_size, "Tokens a page")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  cache->add_option("--batch", options->batch, "Requests to gather")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  cache->add_flag("--graph", options->timing.graph, "CUDA: replay a graph of up to 20 calls");
  cache->add_flag("--cold", options->timing.cold, "Empty the caches before each call");
  cache->add_option("--repeats", options->timing.repeats, "Timed calls; the median is reported")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  add_executor_options(*cache, options->executor);
  add_seed_option(*cache, options->seed);
  add_json_option(*cache, options->json);
  cache->footer(
      "GB/s counts bytes read and written. copy% compares with the first line: a plain copy of as many "
      "bf16 tokens.\n"
      "Example: flashlatent bench cache --backend cuda --json cache.json");
  cache->callback([&action, options] { action = [options] { return run_bench_cache(*options); }; });
}

}  // namespace flashlatent::tools
