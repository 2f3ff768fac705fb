#include "runtime/bench_check.h"

#include <algorithm>
#include <set>

#include "core/formats/formats.h"
#include "core/message.h"

namespace flashlatent::runtime {

namespace {

/// Some requests of a benchmark's input as a problem of its own on the CPU, with its pages in order.
class Sample {
 public:
  Sample(const BenchInput& input, const Executor& executor) : input_(input), executor_(executor) {}

  Status take(std::int64_t request) {
    ++batch_;
    FLASHLATENT_RETURN_IF_ERROR(append(q_, input_.inputs.q, request));
    FLASHLATENT_RETURN_IF_ERROR(append(out_, input_.outputs.out, request));
    FLASHLATENT_RETURN_IF_ERROR(append(lse_, input_.outputs.lse, request));
    if (input_.inputs.kv_scale.present()) {
      FLASHLATENT_RETURN_IF_ERROR(fetch(&scale_, input_.inputs.kv_scale, 0, 1));
    }
    return input_.problem.sparse.enabled ? take_indexed(request) : take_pages(request);
  }

  Comparison compare_rows(int rows, OracleMemory* memory) const {
    DecodeProblem problem = input_.problem;
    const auto& [query, cache, sparse, options] = problem;
    problem.query.batch = batch_;
    DecodeInputs inputs;
    inputs.q = {q_.data(), input_.inputs.q.dtype, {query.batch, query.tokens, query.heads, cache.qk_dim}};
    // Sparse: the tokens that indices name, as pages of one token.
    inputs.kv_cache = contiguous(input_.inputs.kv_cache, kv_);
    if (sparse.enabled) {
      inputs.kv_cache.shape[1] = 1;
      inputs.kv_cache.strides[0] = inputs.kv_cache.strides[1];
    }
    inputs.key_cache = contiguous(input_.inputs.key_cache, kv_);
    inputs.value_cache = contiguous(input_.inputs.value_cache, values_);
    if (input_.inputs.key_scale.present()) {
      inputs.key_scale = inputs.value_scale = {&scale_, Dtype::kF32, {1}};
    }
    if (input_.inputs.kv_scale.present()) inputs.kv_scale = {&scale_, Dtype::kF32, {1}};
    if (query.e4m3) inputs.q_scale = inputs.kv_scale;
    if (sparse.enabled) {
      problem.cache.page_size = 1;
      inputs.indices = {table_.data(), Dtype::kI32, {query.batch, query.tokens, sparse.topk}};
    } else {
      inputs.block_table = {table_.data(), Dtype::kI32, {query.batch, cache.max_pages}};
      inputs.cache_seqlens = {lengths_.data(), Dtype::kI32, {query.batch}};
    }
    const ConstTensorView out(out_.data(), cache.dtype,
                              {query.batch, query.tokens, query.heads, cache.v_dim});
    const ConstTensorView lse(lse_.data(), Dtype::kF32, {query.batch, query.heads, query.tokens});
    const std::int64_t all = std::int64_t{query.batch} * query.tokens * query.heads;
    // Odd, so that over the sample no head of a tile is left out.
    const std::int64_t stride = std::max<std::int64_t>(1, all / rows) | 1;
    return compare(problem, inputs, out, lse, {}, {}, {.first = 0, .stride = all <= rows ? 1 : stride}, {},
                   {}, memory);
  }

 private:
  /// The view of the cache's fetched pages in `memory`. The cache was contiguous, so its strides stay.
  ConstTensorView contiguous(ConstTensorView cache, const std::vector<std::uint8_t>& memory) const {
    if (!cache.present()) return cache;
    cache.data = memory.data();
    cache.shape[0] = pages_;
    cache.device = {};
    return cache;
  }

  Status take_pages(std::int64_t request) {
    const DecodeInputs& from = input_.inputs;
    std::int32_t length = 0;
    FLASHLATENT_RETURN_IF_ERROR(fetch(&length, from.cache_seqlens, request, 1));
    lengths_.push_back(length);
    std::vector<std::int32_t> pages(input_.problem.cache.max_pages);
    FLASHLATENT_RETURN_IF_ERROR(
        fetch(pages.data(), from.block_table, request, static_cast<std::int64_t>(pages.size())));
    for (std::int32_t& page : pages) {
      if (page < 0) continue;
      if (from.kv_cache.present()) {
        FLASHLATENT_RETURN_IF_ERROR(append(kv_, from.kv_cache, page));
      } else {
        FLASHLATENT_RETURN_IF_ERROR(append(kv_, from.key_cache, page));
        FLASHLATENT_RETURN_IF_ERROR(append(values_, from.value_cache, page));
      }
      page = pages_++;
    }
    if (from.key_scale.present()) FLASHLATENT_RETURN_IF_ERROR(fetch(&scale_, from.key_scale, 0, 1));
    table_.insert(table_.end(), pages.begin(), pages.end());
    return {};
  }

  Status take_indexed(std::int64_t request) {
    // The cache as pages of one token; its pages are contiguous.
    ConstTensorView tokens = input_.inputs.kv_cache;
    tokens.shape[0] *= tokens.shape[1];
    tokens.strides[0] = tokens.strides[1];
    tokens.shape[1] = 1;
    const std::size_t begin = table_.size();
    FLASHLATENT_RETURN_IF_ERROR(append(table_, input_.inputs.indices, request));
    for (std::size_t i = begin; i < table_.size(); ++i) {
      FLASHLATENT_RETURN_IF_ERROR(append(kv_, tokens, table_[i]));
      table_[i] = pages_++;
    }
    return {};
  }

  /// Copies `count` elements of the tensor's slice number `index` to the CPU.
  Status fetch(void* to, const ConstTensorView& view, std::int64_t index, std::int64_t count) const {
    const std::size_t element = size_of(view.dtype);
    const auto* from = static_cast<const char*>(view.data) + index * view.strides[0] * element;
    return copy_to_host(to, from, count * element, executor_);
  }

  /// Appends the tensor's whole slice number `index`.
  template <class T>
  Status append(std::vector<T>& to, const ConstTensorView& view, std::int64_t index) const {
    const std::int64_t count = view.elements() / view.shape[0];
    const std::size_t begin = to.size();
    to.resize(begin + count * size_of(view.dtype) / sizeof(T));
    return fetch(to.data() + begin, view, index, count);
  }

  const BenchInput& input_;
  const Executor& executor_;
  int batch_ = 0;
  std::vector<std::uint16_t> q_, out_;
  std::vector<std::uint8_t> kv_, values_;  // latent rows, or keys and values
  float scale_ = 1;
  std::vector<float> lse_;
  std::vector<std::int32_t> lengths_, table_;
  std::int32_t pages_ = 0;
};

}  // namespace

Result<Comparison> compare_sample(const BenchInput& input, int rows, const Executor& executor,
                                  OracleMemory* memory) {
  const auto& cache = input.problem.cache;
  if (cache.extra.enabled || format_of(cache).apart()) {
    return unsupported(
        "a sample of rows (--rmse) is compared with the oracle of one cache in rows, and this is ",
        to_string(input.problem), "; leave it out, and compare by flashlatent check");
  }
  FLASHLATENT_RETURN_IF_ERROR(synchronize(executor));
  Sample sample(input, executor);
  for (std::int64_t request : std::set<std::int64_t>{0, input.problem.query.batch - 1}) {
    FLASHLATENT_RETURN_IF_ERROR(sample.take(request));
  }
  return sample.compare_rows(rows, memory);
}

}  // namespace flashlatent::runtime
