#include "runtime/bench_input.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/element.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "core/token_bytes.h"
#include "cpu/parallel.h"
#include "dispatch/select.h"
#include "flashlatent/kv_cache.h"
#include "runtime/host_memory.h"
#include "runtime/random_value.h"
#include "runtime/unrounded_scales.h"

namespace flashlatent::runtime {

namespace {

class Maker {
 public:
  Maker(BenchInput& input, const std::vector<int>& lengths, float deviation, std::uint64_t seed,
        const Executor& executor, int shared_tokens, int extra_tokens)
      : input_(input),
        lengths_(lengths),
        deviation_(deviation),
        seed_(seed),
        executor_(executor),
        shared_pages_(std::min(shared_tokens, *std::min_element(lengths.begin(), lengths.end())) /
                      input.problem.cache.page_size),
        extra_lengths_(lengths.size(), extra_tokens),
        device_(device_of(executor)) {}

  Status make() {
    make_problem();
    FLASHLATENT_RETURN_IF_ERROR(make_cache());
    if (problem().cache.extra.enabled) FLASHLATENT_RETURN_IF_ERROR(make_extra());
    if (problem().options.attn_sink) FLASHLATENT_RETURN_IF_ERROR(make_sink());
    FLASHLATENT_RETURN_IF_ERROR(make_query());
    return make_outputs();
  }

 private:
  DecodeProblem& problem() { return input_.problem; }
  int pages_of(int length) const { return pages_of(length, input_.problem.cache.page_size); }
  static int pages_of(int length, int page_size) { return (length + page_size - 1) / page_size; }

  void make_problem() {
    const int longest = *std::max_element(lengths_.begin(), lengths_.end());
    problem().query.batch = static_cast<int>(lengths_.size());
    int& columns = problem().cache.max_pages;
    columns = problem().sparse.enabled ? 0 : std::max({1, pages_of(longest), columns});
    ExtraCache& extra = problem().cache.extra;
    if (extra.enabled && !extra.indexed) extra.max_pages = pages_of(extra_lengths_[0], extra.page_size);
  }

  template <class View>
  Status allocate(Buffer& buffer, View& view) {
    FLASHLATENT_ASSIGN_OR_RETURN(buffer, Buffer::allocate(executor_, view.elements() * size_of(view.dtype)));
    view.data = buffer.data();
    return {};
  }

  Status upload(Buffer& buffer, ConstTensorView& view, const std::vector<std::int32_t>& values) {
    FLASHLATENT_RETURN_IF_ERROR(allocate(buffer, view));
    return copy_to_device(buffer.data(), values.data(), values.size() * sizeof(std::int32_t), executor_);
  }

  Status fill(Buffer& buffer, ConstTensorView& view, std::uint64_t stream) {
    FLASHLATENT_RETURN_IF_ERROR(allocate(buffer, view));
    return fill_normal(buffer.data(), view.elements(), view.dtype, deviation_, seed_ * 3 + stream, executor_);
  }

  Status make_cache() {
    std::int64_t pages = 0;
    for (int length : lengths_) pages += pages_of(length) - shared_pages_;
    pages += shared_pages_;
    const std::vector<std::int32_t> order = permutation(pages);
    DecodeInputs& inputs = input_.inputs;
    FLASHLATENT_RETURN_IF_ERROR(problem().cache.layout == KvLayout::kLatent
                                    ? fill_cache(format_of(problem().cache), pages, problem().cache.page_size,
                                                 inputs.kv_cache, input_.kv_cache)
                                    : fill_separate(pages));
    if (!problem().sparse.enabled) return make_page_table(order);
    input_.host_indices = indices_of(order, problem().cache.page_size, lengths_, problem().sparse.topk);
    inputs.indices = {nullptr,
                      Dtype::kI32,
                      {problem().query.batch, problem().query.tokens, problem().sparse.topk},
                      device_};
    return upload(input_.indices, inputs.indices, input_.host_indices);
  }

  std::vector<std::int32_t> permutation(std::int64_t pages) const {
    std::vector<std::int32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t i = pages - 1; i > 0; --i) {
      std::swap(order[i], order[random_bits(seed_, i) % (i + 1)]);
    }
    return order;
  }

  /// Makes the extra cache, the tensors that name its tokens, and the sink.
  Status make_extra() {
    const ExtraCache extra = problem().cache.extra;
    const std::int64_t batch = problem().query.batch, tokens = problem().query.tokens;
    const int each = pages_of(extra_lengths_[0], extra.page_size);
    DecodeInputs& inputs = input_.inputs;
    FLASHLATENT_RETURN_IF_ERROR(fill_cache(extra_format_of(problem().cache), batch * each, extra.page_size,
                                           inputs.extra_kv_cache, input_.extra_kv_cache));
    std::vector<std::int32_t> order = permutation(batch * each);
    auto uploaded = [&](Buffer& buffer, ConstTensorView& view, int value) {
      view = {nullptr, Dtype::kI32, {batch}, device_};
      return upload(buffer, view, std::vector<std::int32_t>(batch, value));
    };
    if (problem().sparse.enabled) {
      FLASHLATENT_RETURN_IF_ERROR(uploaded(input_.topk_length, inputs.topk_length, problem().sparse.topk));
    }
    if (!extra.indexed) {
      inputs.extra_block_table = {nullptr, Dtype::kI32, {batch, each}, device_};
      input_.host_extra_table = std::move(order);
      FLASHLATENT_RETURN_IF_ERROR(
          upload(input_.extra_names, inputs.extra_block_table, input_.host_extra_table));
      return uploaded(input_.extra_lengths, inputs.extra_cache_seqlens, extra_lengths_[0]);
    }
    input_.host_extra_indices = indices_of(order, extra.page_size, extra_lengths_, extra.topk);
    inputs.extra_indices = {nullptr, Dtype::kI32, {batch, tokens, extra.topk}, device_};
    FLASHLATENT_RETURN_IF_ERROR(upload(input_.extra_names, inputs.extra_indices, input_.host_extra_indices));
    return uploaded(input_.extra_lengths, inputs.extra_topk_length, extra.topk);
  }

  Status fill_cache(const LatentFormat& format, std::int64_t pages, int page_size, ConstTensorView& view,
                    Buffer& buffer) {
    const auto& cache = problem().cache;
    ConstTensorView plain(nullptr, cache.dtype, {pages, page_size, cache.heads, cache.qk_dim}, device_);
    if (format.plain()) {
      view = plain;
      return fill(buffer, view, 1);
    }
    const std::int64_t elements = format.elements_of(cache.qk_dim);
    if (cache.qk_dim != elements) {
      return unsupported("qk_dim is ", cache.qk_dim, "; a benchmark's ", format.name, " cache has ",
                         elements);
    }
    TensorView bytes(nullptr, Dtype::kU8, {pages, page_size, 1, format.last_extent(cache.qk_dim)}, device_);
    bytes.strides[0] = format.least_page_stride(page_size, cache.qk_dim);
    Buffer unrounded;
    FLASHLATENT_RETURN_IF_ERROR(fill(unrounded, plain, 1));
    FLASHLATENT_ASSIGN_OR_RETURN(buffer, Buffer::allocate(executor_, pages * bytes.strides[0]));
    bytes.data = buffer.data();
    ConstTensorView scale;
    if (format.scales == ScaleKind::kOfCache) {
      FLASHLATENT_RETURN_IF_ERROR(make_scale(input_.inputs.kv_scale));
      scale = input_.inputs.kv_scale;
    }
    FLASHLATENT_RETURN_IF_ERROR(convert_cache(plain, bytes, executor_, {}, scale, {}, said_as(format)));
    view = bytes;
    return synchronize(executor_);  // before `unrounded` is freed
  }

  /// Makes an e4m3 scale in whose units the elements are normal numbers.
  Status make_scale(ConstTensorView& scale) {
    scale = {nullptr, Dtype::kF32, {1}, device_};
    FLASHLATENT_RETURN_IF_ERROR(allocate(input_.scale, scale));
    return copy_to_device(input_.scale.data(), &deviation_, sizeof(deviation_), executor_);
  }

  /// Fills keys and values of either layout.
  Status fill_separate(std::int64_t pages) {
    const auto& cache = problem().cache;
    const bool fp8 = cache.format == KvFormat::kE4m3;
    const Dtype dtype = fp8 ? Dtype::kU8 : cache.dtype;
    const std::int64_t x = fp8 ? 16 : 8, page_size = cache.page_size;
    ConstTensorView& keys = input_.inputs.key_cache;
    ConstTensorView& values = input_.inputs.value_cache;
    if (cache.layout == KvLayout::kPacked) {
      keys = {nullptr, dtype, {pages, cache.heads, cache.qk_dim / x, page_size, x}, device_};
      values = {nullptr, dtype, {pages, cache.heads, cache.v_dim, page_size}, device_};
    } else {
      keys = {nullptr, dtype, {pages, page_size, cache.heads, cache.qk_dim}, device_};
      values = {nullptr, dtype, {pages, page_size, cache.heads, cache.v_dim}, device_};
    }
    if (!fp8) {
      FLASHLATENT_RETURN_IF_ERROR(fill(input_.kv_cache, keys, 1));
      return fill(input_.value_cache, values, 0);
    }
    FLASHLATENT_RETURN_IF_ERROR(make_scale(input_.inputs.key_scale));
    input_.inputs.value_scale = input_.inputs.key_scale;
    FLASHLATENT_RETURN_IF_ERROR(fill_codes(input_.kv_cache, keys));
    return fill_codes(input_.value_cache, values);
  }

  /// Fills an e4m3 cache with the same million normal numbers over and over.
  Status fill_codes(Buffer& buffer, ConstTensorView& view) {
    FLASHLATENT_RETURN_IF_ERROR(allocate(buffer, view));
    std::vector<std::uint8_t> codes((1 << 20) + 7);  // not a multiple of a page
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = fp8_656::encode(random_normal(seed_, i));
    const auto size = static_cast<std::size_t>(view.elements());
    for (std::size_t begin = 0; begin < size; begin += codes.size()) {
      FLASHLATENT_RETURN_IF_ERROR(copy_to_device(static_cast<std::uint8_t*>(buffer.data()) + begin,
                                                 codes.data(), std::min(codes.size(), size - begin),
                                                 executor_));
    }
    return synchronize(executor_);  // before `codes` is freed
  }

  Status make_page_table(const std::vector<std::int32_t>& order) {
    const std::int64_t batch = problem().query.batch, columns = problem().cache.max_pages;
    std::vector<std::int32_t> table(batch * columns, -1);
    auto next = order.begin() + shared_pages_;
    for (std::int64_t i = 0; i < batch; ++i) {
      for (int page = 0; page < pages_of(lengths_[i]); ++page) {
        table[i * columns + page] = page < shared_pages_ ? order[page] : *next++;
      }
    }
    input_.host_table = table;
    input_.host_lengths = {lengths_.begin(), lengths_.end()};
    DecodeInputs& inputs = input_.inputs;
    inputs.block_table = {nullptr, Dtype::kI32, {batch, columns}, device_};
    inputs.cache_seqlens = {nullptr, Dtype::kI32, {batch}, device_};
    FLASHLATENT_RETURN_IF_ERROR(upload(input_.block_table, inputs.block_table, table));
    return upload(input_.cache_seqlens, inputs.cache_seqlens, {lengths_.begin(), lengths_.end()});
  }

  /// For each query token `topk` random tokens of its request. The requests' pages follow each other in
  /// `order`.
  std::vector<std::int32_t> indices_of(const std::vector<std::int32_t>& order, std::int64_t page_size,
                                       const std::vector<int>& lengths, std::int64_t topk) {
    const std::int64_t batch = problem().query.batch, tokens = problem().query.tokens;
    std::vector<std::int32_t> indices;
    indices.reserve(batch * tokens * topk);
    auto pages = order.begin();
    for (std::int64_t request = 0; request < batch; ++request) {
      const int length = lengths[request];
      std::vector<std::int32_t> slots(length);
      for (int t = 0; t < length; ++t) {
        slots[t] = static_cast<std::int32_t>(pages[t / page_size] * page_size + t % page_size);
      }
      pages += pages_of(length, static_cast<int>(page_size));
      for (std::int64_t token = 0; token < tokens; ++token) {
        // The beginning of a random permutation, repeated if it is too short.
        for (std::int64_t i = 0; i < topk; ++i) {
          const std::int64_t at = i % length;
          std::swap(slots[at], slots[at + random_bits(seed_ + 1, indices.size()) % (length - at)]);
          indices.push_back(slots[at]);
        }
      }
    }
    return indices;
  }

  Status make_sink() {
    const int heads = problem().query.heads;
    input_.inputs.attn_sink = {nullptr, Dtype::kF32, {heads}, device_};
    return upload(input_.sink, input_.inputs.attn_sink, std::vector<std::int32_t>(heads, 0));
  }

  Status make_query() {
    const auto& query = problem().query;
    const auto& cache = problem().cache;
    DecodeInputs& inputs = input_.inputs;
    inputs.q = {nullptr, cache.dtype, {query.batch, query.tokens, query.heads, cache.qk_dim}, device_};
    if (!query.e4m3) return fill(input_.q, inputs.q, 2);
    // Converted as a cache: a query token is a page, and its heads are the page's tokens.
    const std::int64_t tokens = std::int64_t{query.batch} * query.tokens;
    Buffer unrounded;
    ConstTensorView plain(nullptr, cache.dtype, {tokens, query.heads, 1, cache.qk_dim}, device_);
    FLASHLATENT_RETURN_IF_ERROR(fill(unrounded, plain, 2));
    inputs.q.dtype = Dtype::kU8;
    inputs.q_scale = inputs.kv_scale;
    FLASHLATENT_RETURN_IF_ERROR(allocate(input_.q, inputs.q));
    const TensorView codes(input_.q.data(), Dtype::kU8, {tokens, query.heads, 1, cache.qk_dim}, device_);
    FLASHLATENT_RETURN_IF_ERROR(convert_cache(plain, codes, executor_, {}, inputs.q_scale));
    return synchronize(executor_);  // before `unrounded` is freed
  }

  Status make_outputs() {
    const auto& query = problem().query;
    const auto& cache = problem().cache;
    TensorView& out = input_.outputs.out;
    out = {nullptr, cache.dtype, {query.batch, query.tokens, query.heads, cache.v_dim}, device_};
    input_.outputs.lse = {nullptr, Dtype::kF32, {query.batch, query.heads, query.tokens}, device_};
    FLASHLATENT_RETURN_IF_ERROR(allocate(input_.out, out));
    return allocate(input_.lse, input_.outputs.lse);
  }

  BenchInput& input_;
  const std::vector<int>& lengths_;
  const float deviation_;
  const std::uint64_t seed_;
  const Executor& executor_;
  const int shared_pages_;
  const std::vector<int> extra_lengths_;
  const Device device_;
};

}  // namespace

Status check_bench_memory(const DecodeProblem& problem, const std::vector<int>& lengths,
                          const Executor& executor, int shared_tokens, int extra_tokens) {
  const auto& [query, cache, sparse, options] = problem;
  const double batch = static_cast<double>(lengths.size());
  double pages = 0, longest = 1;  // of all requests, and of the longest
  for (int length : lengths) {
    const int has = length / cache.page_size + (length % cache.page_size != 0 ? 1 : 0);
    pages += has;
    longest = std::max<double>(longest, has);
  }
  const int shortest = *std::min_element(lengths.begin(), lengths.end());
  const int shared_pages = std::min(shared_tokens, shortest) / cache.page_size;
  pages -= (batch - 1) * shared_pages;
  const std::string what = message("a batch of ", lengths.size(), " requests of up to ",
                                   *std::max_element(lengths.begin(), lengths.end()), " tokens");
  if (pages > std::numeric_limits<std::int32_t>::max()) {
    return {StatusCode::kExhausted, message(what, " have ", pages, " pages of ", cache.page_size,
                                            " tokens; at most 2147483647 have numbers")};
  }
  // An FP8 cache is converted from a bf16 one.
  auto token = static_cast<double>(token_bytes(cache));
  if (cache.layout == KvLayout::kLatent && cache.format != KvFormat::kPlain) {
    DecodeProblem::Cache plain = cache;
    plain.format = KvFormat::kPlain;
    token += static_cast<double>(token_bytes(plain));
  }
  const double rows = batch * query.tokens * query.heads;
  const double extra = cache.extra.enabled ? batch * extra_tokens : 0;
  const double names =
      4 * extra + 4 * (sparse.enabled ? batch * query.tokens * sparse.topk : batch * longest);
  const double device =
      (pages * cache.page_size + extra) * token + rows * (2.0 * (cache.qk_dim + cache.v_dim) + 4) + names;
  const double host = 2 * names + 4 * pages;
  if (executor.backend == Backend::kCpu) return check_host_memory(device + host, what);
  FLASHLATENT_RETURN_IF_ERROR(check_memory(device, what, executor));
  return check_host_memory(host, what);
}

Result<BenchInput> make_bench_input(DecodeProblem problem, const std::vector<int>& lengths, float deviation,
                                    std::uint64_t seed, const Executor& executor, int shared_tokens,
                                    int extra_tokens) {
  FLASHLATENT_RETURN_IF_ERROR(check_bench_memory(problem, lengths, executor, shared_tokens, extra_tokens));
  BenchInput input;
  input.problem = problem;
  FLASHLATENT_RETURN_IF_ERROR(
      Maker(input, lengths, deviation, seed, executor, shared_tokens, extra_tokens).make());
  return input;
}

Status add_edges(BenchInput& input, BenchEdges edges, std::uint64_t seed, const Executor& executor) {
  constexpr int kPositions = 65536, kColumns = 64, kMostGroups = 8, kPadding = 4;
  const auto& [query, cache, sparse, options] = input.problem;
  const Device device = device_of(executor);
  const std::int64_t tokens = std::int64_t{query.batch} * query.tokens,
                     groups = std::min(kMostGroups, query.heads);
  const std::int64_t columns = query.heads / groups * cache.v_dim;
  const std::int64_t padded = (tokens + kPadding - 1) / kPadding * kPadding;
  std::vector<std::int32_t> positions(tokens);
  for (std::int64_t i = 0; i < tokens; ++i) {
    positions[i] = static_cast<std::int32_t>((seed + 40503 * i) % kPositions);
  }
  std::vector<float> table(std::size_t{kPositions} * kColumns);
  for (int position = 0; position < kPositions; ++position) {
    for (int pair = 0; pair < kColumns / 2; ++pair) {
      const float angle = static_cast<float>(position) * std::pow(1e4F, -2.0F * pair / kColumns);
      table[position * kColumns + pair] = std::cos(angle);
      table[position * kColumns + kColumns / 2 + pair] = std::sin(angle);
    }
  }
  FLASHLATENT_ASSIGN_OR_RETURN(input.positions, Buffer::allocate(executor, positions.size() * 4));
  FLASHLATENT_ASSIGN_OR_RETURN(input.table, Buffer::allocate(executor, table.size() * 4));
  FLASHLATENT_ASSIGN_OR_RETURN(input.codes, Buffer::allocate(executor, tokens * groups * columns));
  FLASHLATENT_ASSIGN_OR_RETURN(input.scales,
                               Buffer::allocate(executor, groups * (columns / 128) * padded * 4));
  FLASHLATENT_RETURN_IF_ERROR(
      copy_to_device(input.positions.data(), positions.data(), positions.size() * 4, executor));
  FLASHLATENT_RETURN_IF_ERROR(copy_to_device(input.table.data(), table.data(), table.size() * 4, executor));
  Rotation rotation;
  rotation.positions = {input.positions.data(), Dtype::kI32, {query.batch, query.tokens}, device};
  rotation.table = {input.table.data(), Dtype::kF32, {kPositions, kColumns}, device};
  input.problem.options.q_edge = edges.query;
  input.problem.options.out_edge = edges.output;
  if (edges.query) {
    input.inputs.q_norm = edges.norm ? 1e-6F : 0;
    input.inputs.q_rotate = rotation;
  }
  if (!edges.output) return {};
  input.inputs.out_rotate = rotation;
  Fp8Output& fp8 = input.outputs.out_fp8;
  fp8.codes = {input.codes.data(), Dtype::kU8, {tokens, groups, columns}, device};
  fp8.codes.strides = {columns, tokens * columns, 1};
  fp8.scales = {input.scales.data(), Dtype::kF32, {groups, columns / 128, padded}, device};
  input.outputs.out = {};
  return {};
}

SparsePrefillInputs prefill_inputs(const BenchInput& input) {
  const auto& [query, cache, sparse, options] = input.problem;
  const Device device = input.inputs.q.device;
  const std::int64_t s_q = query.tokens;
  SparsePrefillInputs inputs;
  inputs.q = {input.inputs.q.data, input.inputs.q.dtype, {s_q, query.heads, cache.qk_dim}, device};
  inputs.q_scale = input.inputs.q_scale;
  inputs.kv = input.inputs.kv_cache;
  if (cache.format == KvFormat::kPlain && cache.page_size == 1) {
    inputs.kv = {inputs.kv.data, cache.dtype, {inputs.kv.shape[0], 1, cache.qk_dim}, device};
  }
  inputs.indices = {input.inputs.indices.data, Dtype::kI32, {s_q, 1, sparse.topk}, device};
  inputs.attn_sink = input.inputs.attn_sink;
  inputs.kv_scale = input.inputs.kv_scale;
  inputs.q_norm = input.inputs.q_norm;
  const auto of_tokens = [s_q](Rotation rotation) {
    if (rotation.present())
      rotation.positions = {rotation.positions.data, Dtype::kI32, {s_q}, rotation.positions.device};
    return rotation;
  };
  inputs.q_rotate = of_tokens(input.inputs.q_rotate);
  inputs.out_rotate = of_tokens(input.inputs.out_rotate);
  if (cache.extra.enabled) {
    inputs.extra_kv_cache = input.inputs.extra_kv_cache;
    inputs.extra_indices = {input.inputs.extra_indices.data, Dtype::kI32, {s_q, 1, cache.extra.topk}, device};
  }
  return inputs;
}

Status fill_normal(void* data, std::int64_t count, Dtype dtype, float scale, std::uint64_t seed,
                   const Executor& executor) {
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) return fill_normal_cuda(data, count, dtype, scale, seed, executor);
#endif
  if (executor.backend != Backend::kCpu) return available(executor.backend);
  auto* elements = static_cast<std::uint16_t*>(data);
  cpu::parallel_for(count, cpu::hardware_threads(),
                    [&](std::int64_t i) { elements[i] = from_float(scale * random_normal(seed, i), dtype); });
  return {};
}

namespace {

Status spread(const TokenScales& scales, std::int64_t tokens, const Executor& executor) {
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) return spread_scales_cuda(scales, tokens, executor);
#endif
  cpu::parallel_for(tokens, cpu::hardware_threads(), [&](std::int64_t i) { scales.spread(i); });
  return {};
}

}  // namespace

Result<bool> spread_scales(const BenchInput& input, const Executor& executor) {
  const DecodeProblem::Cache& cache = input.problem.cache;
  bool any = false;
  const auto of_cache = [&](const ConstTensorView& view, const LatentFormat& format) -> Status {
    if (view.data == nullptr || format.scales != ScaleKind::kFp32) return {};
    any = true;
    auto* data = static_cast<std::uint8_t*>(const_cast<void*>(view.data));
    const std::int64_t page_size = view.shape[1], stride = view.strides[1];
    const std::int64_t first = format.scales_at(page_size, 0, stride);
    return spread({.first = data + first,
                   .page_size = page_size,
                   .page_stride = view.strides[0],
                   .token_stride = format.scales_at(page_size, 1, stride) - first,
                   .groups = format.groups()},
                  view.shape[0] * page_size, executor);
  };
  FLASHLATENT_RETURN_IF_ERROR(of_cache(input.inputs.kv_cache, format_of(cache)));
  if (cache.extra.enabled) {
    FLASHLATENT_RETURN_IF_ERROR(of_cache(input.inputs.extra_kv_cache, extra_format_of(cache)));
  }
  return any;
}

}  // namespace flashlatent::runtime
