#include "serve/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "core/formats/formats.h"
#include "core/message.h"
#include "cpu/parallel.h"
#include "runtime/host_memory.h"
#include "serve/content.h"
#include "serve/latents.h"

namespace flashlatent::serve {

namespace {

// MLA: 512 latent + 64 RoPE elements. Where all of a row is value: 448 + 64.
constexpr std::int64_t kRope = 64, kValue = 512;
std::int64_t row_elements(KvFormat format) {
  const LatentFormat& value = format_of(format, ScalePlace::kAuto);
  return value.all_value ? value.dim : kValue + kRope;
}
constexpr float kCacheScale = 1.0F;
constexpr float kQueryScale = 4.0F;  // makes scores of deviation 2.3: some tokens matter more than others
constexpr int kStagedRows = 4096;
constexpr int kPoison = 0xFF;  // bf16 and fp16: 0xFFFF is a NaN

/// Bytes of elements of 16 bits.
std::size_t bytes_of(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(std::uint16_t);
}

}  // namespace

Engine::Engine(std::span<const io::TraceRequest> trace, const Options& options)
    : trace_(trace), options_(options) {
  problem_.query = {.batch = options.batch, .tokens = 1, .heads = options.heads, .ragged = false};
  problem_.cache = {.format = options.format,
                    .dtype = options.dtype,
                    .heads = 1,
                    .qk_dim = static_cast<int>(row_elements(options.format)),
                    .v_dim = kValue,
                    .page_size = options.page_size,
                    .max_pages = options.max_pages,
                    .scales = has_places(options.format) ? options.scales : ScalePlace::kAuto};
  problem_.options.softmax_scale = 1.0F / std::sqrt(192.0F);  // DeepSeek-V2: 128 + 64 before absorption
  problem_.options.prefix_sharing = options.prefix_sharing;
  row_ = row_elements(options.format);
  if (options.kv_dim > 0) {
    problem_.cache.heads = options.kv_heads;
    problem_.cache.qk_dim = problem_.cache.v_dim = options.kv_dim;
    problem_.cache.layout = KvLayout::kSeparate;
    problem_.options.softmax_scale = 1.0F / std::sqrt(static_cast<float>(options.kv_dim));
    row_ = 2LL * options.kv_heads * options.kv_dim;
  }
  const bool cuda = options.executor.backend == Backend::kCuda;
  device_ = {cuda ? DeviceType::kCuda : DeviceType::kCpu, cuda ? options.executor.device : 0};
}

std::size_t Engine::cache_bytes() const {
  const std::int64_t tokens = std::int64_t{options_.pages} * options_.page_size;
  if (options_.format == KvFormat::kPlain) return bytes_of(tokens * row_);
  return options_.pages * page_stride();
}

std::int64_t Engine::page_stride() const {
  return format_of(problem_.cache).least_page_stride(options_.page_size, row_);
}

TensorView Engine::latent_view(void* data, std::int64_t pages, Device device) const {
  const LatentFormat& format = format_of(problem_.cache);
  TensorView view(data, format.dtype(options_.dtype),
                  {pages, options_.page_size, 1, format.last_extent(row_)}, device);
  view.strides[0] = page_stride();
  return view;
}

TensorView Engine::cache_view(int layer) const {
  return latent_view(caches_[layer].data(), options_.pages, device_);
}

/// A layer's keys, and behind them its values.
KeyValueCache Engine::key_value_cache(int layer) const {
  auto* keys = static_cast<std::uint8_t*>(caches_[layer].data());
  KeyValueCache cache;
  cache.keys = {keys,
                options_.dtype,
                {options_.pages, options_.page_size, options_.kv_heads, options_.kv_dim},
                device_};
  cache.values = cache.keys;
  cache.values.data = keys + cache_bytes() / 2;
  return cache;
}

void Engine::set_cache(int layer, DecodeInputs& inputs) const {
  if (latent()) {
    inputs.kv_cache = cache_view(layer);
    return;
  }
  const KeyValueCache cache = key_value_cache(layer);
  inputs.key_cache = cache.keys;
  inputs.value_cache = cache.values;
}

Result<Engine> Engine::create(std::span<const io::TraceRequest> trace, const Options& options) {
  if (options.layers < 1) return invalid_argument("layers is ", options.layers, ", must be at least 1");
  Engine engine(trace, options);
  FLASHLATENT_RETURN_IF_ERROR(validate(engine.problem_));
  FLASHLATENT_RETURN_IF_ERROR(available(options.executor.backend));
  FLASHLATENT_RETURN_IF_ERROR(engine.check_host_memory());
  FLASHLATENT_RETURN_IF_ERROR(engine.allocate());
  return engine;
}

Status Engine::too_large(std::string_view why) const {
  return {
      StatusCode::kExhausted,
      message(why, "; ", options_.layers, " layers' caches of ", cache_bytes(), " bytes and ", options_.batch,
              " x ", options_.heads,
              " query rows are wanted: fewer layers, pool tokens, requests in the batch or heads need less")};
}

// Systems grant more memory than they have, and end the program when it touches the rest.
Status Engine::check_host_memory() const {
  const double rows = static_cast<double>(options_.batch) * options_.heads;
  const auto& cache = problem_.cache;
  double wanted = rows * static_cast<double>(bytes_of(cache.qk_dim)) +
                  4.0 * options_.batch * options_.max_pages;  // the page table
  if (device_.type == DeviceType::kCpu) {
    wanted += options_.layers * static_cast<double>(cache_bytes()) +
              rows * static_cast<double>(bytes_of(cache.qk_dim + 2LL * cache.v_dim));
  }
  const Status fits = runtime::check_host_memory(wanted, "the replay");
  return fits.ok() ? fits : too_large(fits.message());
}

Status Engine::allocate() {
  FLASHLATENT_ASSIGN_OR_RETURN(handle_, Plan::make(problem_, options_.executor));

  const std::int64_t rows = std::int64_t{options_.batch} * options_.heads;
  const std::size_t out_bytes = bytes_of(rows * problem_.cache.v_dim);
  const std::size_t lse_bytes = static_cast<std::size_t>(rows) * sizeof(float);
  host_q_.resize(static_cast<std::size_t>(rows) * problem_.cache.qk_dim);
  host_block_table_.resize(static_cast<std::size_t>(options_.batch) * options_.max_pages);
  host_cache_seqlens_.resize(options_.batch);
  if (appends() || device_.type == DeviceType::kCuda) staging_.resize(kStagedRows * row_);

  caches_.resize(options_.layers);
  std::vector<std::pair<runtime::Buffer*, std::size_t>> wanted = {
      {&q_, bytes_of(rows * problem_.cache.qk_dim)},
      {&out_, out_bytes},
      {&kept_out_, out_bytes},
      {&lse_, lse_bytes},
      {&kept_lse_, lse_bytes},
      {&block_table_, host_block_table_.size() * sizeof(std::int32_t)},
      {&cache_seqlens_, host_cache_seqlens_.size() * sizeof(std::int32_t)},
      {&plan_, handle_->plan_bytes()},
      {&workspace_, handle_->workspace_bytes()},
      {&staged_rows_, appends() ? bytes_of(kStagedRows * row_) : 0},
      {&staged_slots_, appends() ? kStagedRows * sizeof(std::int32_t) : 0}};
  for (runtime::Buffer& cache : caches_) wanted.emplace_back(&cache, cache_bytes());
  for (auto& [buffer, bytes] : wanted) {
    auto allocated = runtime::Buffer::allocate(options_.executor, bytes);
    if (!allocated.ok()) return too_large(allocated.status().message());
    *buffer = std::move(*allocated);
  }
  for (const runtime::Buffer& cache : caches_) {
    FLASHLATENT_RETURN_IF_ERROR(runtime::fill(cache.data(), kPoison, cache.size(), options_.executor));
  }
  return runtime::synchronize(options_.executor);
}

std::uint16_t* Engine::row_of(int layer, std::int64_t slot) const {
  return static_cast<std::uint16_t*>(caches_[layer].data()) + slot * row_;
}

void Engine::make_row(std::uint16_t* row, int request, int position, int layer) const {
  RowName name = token_name(trace_[request], request, position);
  name.layer = layer;
  fill_random({row, static_cast<std::size_t>(row_)}, options_.dtype, kCacheScale, options_.seed, name);
}

Status Engine::fill(const Scheduler::Fill& fill, const PagePool& pool) {
  FLASHLATENT_ASSIGN_OR_RETURN(const auto pages, pool.pages(fill.sequence));
  const int page_size = options_.page_size;
  const auto slot_of = [&](int token) {
    return std::int64_t{pages[token / page_size]} * page_size + token % page_size;
  };
  const bool staged = !staging_.empty();
  for (int begin = fill.begin; begin < fill.end; begin += kStagedRows) {
    const int end = std::min(fill.end, begin + kStagedRows);
    for (int layer = 0; layer < options_.layers; ++layer) {
      const int threads = end - begin > 16 ? cpu::hardware_threads() : 1;
      cpu::parallel_for(end - begin, threads, [&](std::int64_t i) {
        const int token = begin + static_cast<int>(i);
        make_row(staged ? staging_.data() + (token - begin) * row_ : row_of(layer, slot_of(token)),
                 fill.request, token, layer);
      });
      if (!staged) continue;
      std::vector<std::int32_t> slots;
      for (int token = begin; token < end; ++token)
        slots.push_back(static_cast<std::int32_t>(slot_of(token)));
      FLASHLATENT_RETURN_IF_ERROR(appends() ? append_staged(layer, slots) : copy_staged(layer, slots));
    }
  }
  return {};
}

Status Engine::copy_staged(int layer, const std::vector<std::int32_t>& slots) {
  for (std::size_t from = 0, to = 0; from < slots.size(); from = to) {
    // Tokens whose rows are consecutive in the cache are copied together.
    while (to < slots.size() && slots[to] == slots[from] + static_cast<std::int64_t>(to - from)) ++to;
    FLASHLATENT_RETURN_IF_ERROR(
        runtime::copy_to_device(row_of(layer, slots[from]), staging_.data() + from * row_,
                                bytes_of(static_cast<std::int64_t>(to - from) * row_), options_.executor));
  }
  return {};
}

Status Engine::append_staged(int layer, const std::vector<std::int32_t>& slots) {
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const Executor& executor = options_.executor;
  FLASHLATENT_RETURN_IF_ERROR(
      runtime::copy_to_device(staged_rows_.data(), staging_.data(), bytes_of(tokens * row_), executor));
  FLASHLATENT_RETURN_IF_ERROR(
      runtime::copy_to_device(staged_slots_.data(), slots.data(), tokens * sizeof(slots[0]), executor));
  const ConstTensorView slot_mapping(staged_slots_.data(), Dtype::kI32, {tokens}, device_);
  if (!this->latent()) {
    ConstTensorView keys(staged_rows_.data(), options_.dtype, {tokens, options_.kv_heads, options_.kv_dim},
                         device_);
    keys.strides[0] = row_;
    ConstTensorView values = keys;
    values.data = static_cast<const std::uint16_t*>(staged_rows_.data()) + row_ / 2;
    return append_kv(keys, values, slot_mapping, key_value_cache(layer), executor);
  }
  ConstTensorView latent(staged_rows_.data(), options_.dtype, {tokens, row_ - kRope}, device_);
  ConstTensorView rope(static_cast<const std::uint16_t*>(staged_rows_.data()) + row_ - kRope, options_.dtype,
                       {tokens, kRope}, device_);
  latent.strides[0] = rope.strides[0] = row_;
  return append_latent(latent, rope, slot_mapping, cache_view(layer), executor, {},
                       said_as(format_of(problem_.cache)));
}

Status Engine::make_queries(const Scheduler::Step& step, const PagePool& pool) {
  const std::int64_t elements = std::int64_t{options_.heads} * problem_.cache.qk_dim;
  std::vector<int> lengths;
  for (PagePool::Sequence sequence : step.sequences) {
    FLASHLATENT_ASSIGN_OR_RETURN(const auto length, pool.length(sequence));
    lengths.push_back(length);
  }
  cpu::parallel_for(std::ssize(step.requests), cpu::hardware_threads(), [&](std::int64_t i) {
    const RowName name{RowKind::kQuery, step.requests[i], lengths[i], 0};
    fill_random({host_q_.data() + i * elements, static_cast<std::size_t>(elements)}, options_.dtype,
                kQueryScale, options_.seed, name);
  });
  return runtime::copy_to_device(q_.data(), host_q_.data(), host_q_.size() * sizeof(std::uint16_t),
                                 options_.executor);
}

Result<double> Engine::step(const Scheduler::Step& step, const PagePool& pool, int kept_layer) {
  const Executor& executor = options_.executor;
  FLASHLATENT_RETURN_IF_ERROR(make_queries(step, pool));  // not timed, since a model would make them
  FLASHLATENT_RETURN_IF_ERROR(runtime::synchronize(executor));

  const auto start = std::chrono::steady_clock::now();
  FLASHLATENT_RETURN_IF_ERROR(
      pool.write_page_table(step.sequences, options_.max_pages, host_block_table_, host_cache_seqlens_));
  const Dtype dtype = options_.dtype;
  const std::int64_t batch = options_.batch, heads = options_.heads;
  const std::int64_t qk_dim = problem_.cache.qk_dim, v_dim = problem_.cache.v_dim;
  FLASHLATENT_RETURN_IF_ERROR(runtime::copy_to_device(block_table_.data(), host_block_table_.data(),
                                                      host_block_table_.size() * sizeof(std::int32_t),
                                                      executor));
  FLASHLATENT_RETURN_IF_ERROR(runtime::copy_to_device(cache_seqlens_.data(), host_cache_seqlens_.data(),
                                                      host_cache_seqlens_.size() * sizeof(std::int32_t),
                                                      executor));
  DecodeInputs inputs;
  inputs.q = {q_.data(), dtype, {batch, 1, heads, qk_dim}, device_};
  inputs.block_table = {block_table_.data(), Dtype::kI32, {batch, options_.max_pages}, device_};
  inputs.cache_seqlens = {cache_seqlens_.data(), Dtype::kI32, {batch}, device_};
  const HostPages pages{{host_block_table_.data(), Dtype::kI32, {batch, options_.max_pages}},
                        {host_cache_seqlens_.data(), Dtype::kI32, {batch}}};
  FLASHLATENT_RETURN_IF_ERROR(handle_->schedule(inputs.cache_seqlens, pages, plan_.memory()));
  for (int layer = 0; layer < options_.layers; ++layer) {
    const bool kept = layer == kept_layer;
    set_cache(layer, inputs);
    DecodeOutputs outputs;
    outputs.out = {(kept ? kept_out_ : out_).data(), dtype, {batch, 1, heads, v_dim}, device_};
    outputs.lse = {(kept ? kept_lse_ : lse_).data(), Dtype::kF32, {batch, heads, 1}, device_};
    FLASHLATENT_RETURN_IF_ERROR(handle_->decode(inputs, outputs, plan_.memory(), workspace_.memory()));
  }
  FLASHLATENT_RETURN_IF_ERROR(runtime::synchronize(executor));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::int64_t Engine::context() const {
  return std::accumulate(host_cache_seqlens_.begin(), host_cache_seqlens_.end(), std::int64_t{0});
}

Result<runtime::Comparison> Engine::verify(const Scheduler::Step& step, int row, int kept_layer,
                                           int heads) const {
  const std::int64_t h_q = options_.heads, page_size = options_.page_size;
  const std::int64_t qk_dim = problem_.cache.qk_dim, v_dim = problem_.cache.v_dim;
  const std::int32_t length = host_cache_seqlens_[row];
  const std::int64_t pages = (length + page_size - 1) / page_size;

  std::vector<std::uint16_t> out(h_q * v_dim);
  std::vector<float> lse(h_q);
  FLASHLATENT_RETURN_IF_ERROR(runtime::copy_to_host(
      out.data(), static_cast<const std::uint16_t*>(kept_out_.data()) + row * h_q * v_dim,
      out.size() * sizeof(std::uint16_t), options_.executor));
  FLASHLATENT_RETURN_IF_ERROR(runtime::copy_to_host(lse.data(),
                                                    static_cast<const float*>(kept_lse_.data()) + row * h_q,
                                                    lse.size() * sizeof(float), options_.executor));

  // The request alone, with its pages in order.
  std::vector<std::uint16_t> cache(pages * page_size * row_);
  std::vector<std::int32_t> block_table(pages);
  for (std::int64_t i = 0; i < pages; ++i) block_table[i] = static_cast<std::int32_t>(i);
  cpu::parallel_for(length, cpu::hardware_threads(), [&](std::int64_t token) {
    make_row(cache.data() + token * row_, step.requests[row], static_cast<int>(token), kept_layer);
  });
  DecodeProblem problem = problem_;
  problem.query.batch = 1;
  problem.cache.max_pages = static_cast<int>(pages);
  DecodeInputs inputs;
  inputs.q = {host_q_.data() + row * h_q * qk_dim, options_.dtype, {1, 1, h_q, qk_dim}};
  if (latent()) {
    inputs.kv_cache = {cache.data(), options_.dtype, {pages, page_size, 1, row_}};
  } else {  // a token's keys and values lie in one row
    ConstTensorView& keys = inputs.key_cache;
    keys = {cache.data(), options_.dtype, {pages, page_size, options_.kv_heads, qk_dim}};
    keys.strides = {page_size * row_, row_, qk_dim, 1};
    inputs.value_cache = keys;
    inputs.value_cache.data = cache.data() + row_ / 2;
  }
  std::vector<std::uint8_t> quantised;
  if (options_.format != KvFormat::kPlain) {  // the bytes that append_latent must have written
    quantised.resize(pages * page_stride());
    const TensorView fp8 = latent_view(quantised.data(), pages, {});
    FLASHLATENT_RETURN_IF_ERROR(
        convert_cache(inputs.kv_cache, fp8, Executor{}, {}, {}, {}, said_as(format_of(problem_.cache))));
    inputs.kv_cache = fp8;
  }
  inputs.block_table = {block_table.data(), Dtype::kI32, {1, pages}};
  inputs.cache_seqlens = {&length, Dtype::kI32, {1}};
  const std::int64_t stride = std::max<std::int64_t>(1, h_q / heads);
  return runtime::compare(problem, inputs, {out.data(), options_.dtype, {1, 1, h_q, v_dim}},
                          {lse.data(), Dtype::kF32, {1, h_q, 1}}, {}, {}, {length % stride, stride});
}

}  // namespace flashlatent::serve
