#include "flashlatent/prepare_step.h"

#include <string>
#include <utility>
#include <vector>

#include "core/expect.h"
#include "core/message.h"
#include "core/overlap.h"
#include "core/step_tokens.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"

namespace flashlatent {

namespace {

constexpr std::int64_t kMostRows = INT32_MAX;

Result<step_tokens::Query> query_of(const StepQuery& query, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided("cache_seqlens", query.cache_seqlens, Dtype::kI32, device, {-1}));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("cache_seqlens", query.cache_seqlens));
  const std::int64_t batch = query.cache_seqlens.shape[0];
  const bool ragged = query.cu_seqlens_q.present();
  if (ragged) {
    FLASHLATENT_RETURN_IF_ERROR(
        expect_strided("cu_seqlens_q", query.cu_seqlens_q, Dtype::kI32, device, {batch + 1}));
  }
  const std::int64_t most = ragged || batch == 0 ? kMostRows : kMostRows / batch;
  if (query.tokens < (ragged ? 0 : 1) || query.tokens > most) {
    return invalid_argument("tokens is ", query.tokens, " and cache_seqlens is ",
                            to_string(query.cache_seqlens), "; ", ragged ? 0 : 1, " to ", most,
                            ragged ? " rows are accepted" : " query tokens a request are accepted");
  }
  return step_tokens::Query{.lengths = static_cast<const std::int32_t*>(query.cache_seqlens.data),
                            .begins = static_cast<const std::int32_t*>(query.cu_seqlens_q.data),
                            .batch = static_cast<std::int32_t>(batch),
                            .tokens = Divisor(ragged ? 1 : static_cast<std::int32_t>(query.tokens)),
                            .rows = ragged ? (batch == 0 ? 0 : query.tokens) : batch * query.tokens};
}

/// The name of a member of cache number `i`.
std::string name_of(std::size_t i, const char* member) {
  return message("caches[", i, "].", member);
}

Status expect_output(const std::string& name, const TensorView& view, Dtype dtype, Device device,
                     const std::vector<std::int64_t>& shape) {
  if (!view.present()) return {};
  return expect_strided(name.c_str(), view, dtype, device, shape);
}

Result<step_tokens::Cache> cache_of(const StepCache& cache, std::size_t i, const step_tokens::Query& query,
                                    Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_strided(name_of(i, "block_table").c_str(), cache.block_table,
                                             Dtype::kI32, device, {query.batch, -1}));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable(name_of(i, "block_table").c_str(), cache.block_table));
  constexpr std::int64_t kMostTokens = 1 << 20;
  if (cache.page_size < 1 || cache.page_size > kMostTokens) {
    return invalid_argument(name_of(i, "page_size"), " is ", cache.page_size, "; 1 to ", kMostTokens,
                            " is accepted");
  }
  if (cache.ratio < 1) {
    return invalid_argument(name_of(i, "ratio"), " is ", cache.ratio, "; 1 and more is accepted");
  }
  const bool wide = cache.slots.present() && cache.slots.dtype == Dtype::kI64;
  FLASHLATENT_RETURN_IF_ERROR(expect_output(name_of(i, "slots"), cache.slots,
                                            wide ? Dtype::kI64 : Dtype::kI32, device, {query.rows}));
  FLASHLATENT_RETURN_IF_ERROR(
      expect_output(name_of(i, "lengths"), cache.lengths, Dtype::kI32, device, {query.rows}));
  FLASHLATENT_RETURN_IF_ERROR(expect_output(name_of(i, "request_lengths"), cache.request_lengths, Dtype::kI32,
                                            device, {query.batch}));
  FLASHLATENT_RETURN_IF_ERROR(
      expect_output(name_of(i, "indices"), cache.indices, Dtype::kI32, device, {query.rows, -1}));
  if (cache.indices.present()) {
    FLASHLATENT_RETURN_IF_ERROR(expect_countable(name_of(i, "indices").c_str(), cache.indices));
  }
  return step_tokens::Cache{
      .pages = static_cast<const std::int32_t*>(cache.block_table.data),
      .pages_stride = cache.block_table.strides[0],
      .columns = static_cast<std::int32_t>(cache.block_table.shape[1]),
      .page_size = Divisor(static_cast<std::int32_t>(cache.page_size)),
      .ratio = Divisor(cache.ratio),
      .slots = cache.slots.data,
      .wide_slots = wide,
      .lengths = static_cast<std::int32_t*>(cache.lengths.data),
      .request_lengths = static_cast<std::int32_t*>(cache.request_lengths.data),
      .indices = static_cast<std::int32_t*>(cache.indices.data),
      .indices_stride = cache.indices.strides[0],
      .count = cache.indices.present() ? static_cast<std::int32_t>(cache.indices.shape[1]) : 0};
}

using Named = std::pair<std::string, ConstTensorView>;

/// Refuses outputs that overlap each other or inputs.
Status expect_outputs_apart(const StepQuery& query, std::span<const StepCache> caches,
                            const TensorView& positions) {
  std::vector<Named> read = {{"cache_seqlens", query.cache_seqlens}, {"cu_seqlens_q", query.cu_seqlens_q}};
  std::vector<Named> written = {{"positions", positions}};
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const StepCache& cache = caches[i];
    read.emplace_back(name_of(i, "block_table"), cache.block_table);
    written.emplace_back(name_of(i, "slots"), cache.slots);
    written.emplace_back(name_of(i, "lengths"), cache.lengths);
    written.emplace_back(name_of(i, "request_lengths"), cache.request_lengths);
    written.emplace_back(name_of(i, "indices"), cache.indices);
  }
  for (const Named& output : written) {
    if (!output.second.present()) continue;
    for (const Named& other : read) {
      if (!other.second.present()) continue;
      FLASHLATENT_RETURN_IF_ERROR(
          expect_apart(other.first.c_str(), other.second, output.first.c_str(), output.second));
    }
    read.push_back(output);
  }
  return {};
}

}  // namespace

Status prepare_step(const StepQuery& query, std::span<const StepCache> caches, const TensorView& positions,
                    const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  if (caches.size() > kMostStepCaches) {
    return invalid_argument("caches has ", caches.size(), " elements; up to ", kMostStepCaches,
                            " are accepted");
  }
  step_tokens::Call call = {};
  FLASHLATENT_ASSIGN_OR_RETURN(call.query, query_of(query, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_output("positions", positions, Dtype::kI32, device, {call.query.rows}));
  call.positions = static_cast<std::int32_t*>(positions.data);
  for (const StepCache& cache : caches) {
    const auto i = static_cast<std::size_t>(call.caches);
    FLASHLATENT_ASSIGN_OR_RETURN(call.cache[i], cache_of(cache, i, call.query, device));
    ++call.caches;
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_outputs_apart(query, caches, positions));
  if (call.query.batch == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, prepare_step)(call, executor);
}

}  // namespace flashlatent
