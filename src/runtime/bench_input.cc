#include "runtime/bench_input.h"

#include <algorithm>
#include <numeric>

#include "core/element.h"
#include "core/message.h"
#include "dispatch/select.h"
#include "runtime/random_value.h"

namespace flashlatent::runtime {

namespace {

class Maker {
 public:
  Maker(BenchInput& input, const std::vector<int>& lengths, float deviation, std::uint64_t seed,
        const Executor& executor)
      : input_(input),
        lengths_(lengths),
        deviation_(deviation),
        seed_(seed),
        executor_(executor),
        device_(device_of(executor)) {}

  Status make() {
    make_problem();
    FLASHLATENT_RETURN_IF_ERROR(make_cache());
    FLASHLATENT_RETURN_IF_ERROR(make_query());
    return make_outputs();
  }

 private:
  DecodeProblem& problem() { return input_.problem; }
  int pages_of(int length) const {
    const int size = input_.problem.cache.page_size;
    return (length + size - 1) / size;
  }

  void make_problem() {
    const int longest = *std::max_element(lengths_.begin(), lengths_.end());
    problem().query.batch = static_cast<int>(lengths_.size());
    problem().cache.max_pages = std::max(1, pages_of(longest));
  }

  template <class View>
  Status allocate(Buffer& buffer, View& view) {
    Result<Buffer> made = Buffer::allocate(executor_, view.elements() * size_of(view.dtype));
    if (!made.ok()) return made.status();
    buffer = std::move(*made);
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
    const auto& cache = problem().cache;
    std::int64_t pages = 0;
    for (int length : lengths_) pages += pages_of(length);
    std::vector<std::int32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t i = pages - 1; i > 0; --i) {
      std::swap(order[i], order[random_bits(seed_, i) % (i + 1)]);
    }
    const auto batch = static_cast<std::int64_t>(lengths_.size());
    std::vector<std::int32_t> table(batch * cache.max_pages, -1);
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < batch; ++i) {
      for (int page = 0; page < pages_of(lengths_[i]); ++page)
        table[i * cache.max_pages + page] = order[next++];
    }
    DecodeInputs& inputs = input_.inputs;
    inputs.kv_cache = {nullptr, cache.dtype, {pages, cache.page_size, cache.heads, cache.qk_dim}, device_};
    inputs.block_table = {nullptr, Dtype::kI32, {batch, cache.max_pages}, device_};
    inputs.cache_seqlens = {nullptr, Dtype::kI32, {batch}, device_};
    FLASHLATENT_RETURN_IF_ERROR(fill(input_.kv_cache, inputs.kv_cache, 1));
    FLASHLATENT_RETURN_IF_ERROR(upload(input_.block_table, inputs.block_table, table));
    return upload(input_.cache_seqlens, inputs.cache_seqlens, {lengths_.begin(), lengths_.end()});
  }

  Status make_query() {
    const auto& query = problem().query;
    const auto& cache = problem().cache;
    DecodeInputs& inputs = input_.inputs;
    inputs.q = {nullptr, cache.dtype, {query.batch, query.tokens, query.heads, cache.qk_dim}, device_};
    return fill(input_.q, inputs.q, 2);
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
  const Device device_;
};

}  // namespace

Result<BenchInput> make_bench_input(DecodeProblem problem, const std::vector<int>& lengths, float deviation,
                                    std::uint64_t seed, const Executor& executor) {
  BenchInput input;
  input.problem = problem;
  FLASHLATENT_RETURN_IF_ERROR(Maker(input, lengths, deviation, seed, executor).make());
  return input;
}

Status fill_normal(void* data, std::int64_t count, Dtype dtype, float scale, std::uint64_t seed,
                   const Executor& executor) {
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) return fill_normal_cuda(data, count, dtype, scale, seed, executor);
#endif
  if (executor.backend != Backend::kCpu) return available(executor.backend);
  auto* elements = static_cast<std::uint16_t*>(data);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) elements[i] = from_float(scale * random_normal(seed, i), dtype);
  return {};
}

}  // namespace flashlatent::runtime
