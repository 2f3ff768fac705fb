#include "cpu/tokens.h"

#include <algorithm>

namespace flashlatent::cpu {

namespace {

/// The cache that has keys.
const ConstTensorView& keys_of(const DecodeProblem& problem, const DecodeInputs& inputs) {
  return problem.cache.layout == KvLayout::kLatent ? inputs.kv_cache : inputs.key_cache;
}

}  // namespace

TokenSource::Places::Places(const ConstTensorView& cache, KvLayout layout)
    : data(static_cast<const std::uint8_t*>(cache.data)) {
  const auto element = static_cast<std::int64_t>(size_of(cache.dtype));
  const bool packed = layout == KvLayout::kPacked;
  page_bytes = cache.strides[0] * element;
  token_bytes = cache.strides[!packed ? 1 : 3] * element;
  head_bytes = cache.strides[!packed ? 2 : 1] * element;
}

TokenSource::TokenSource(const DecodeProblem& problem, const DecodeInputs& inputs)
    : inputs_(inputs),
      sparse_(problem.sparse.enabled),
      latent_(problem.cache.layout == KvLayout::kLatent),
      page_size_(problem.cache.page_size),
      pages_(keys_of(problem, inputs).shape[0]),
      rows_(keys_of(problem, inputs), problem.cache.layout),
      values_(inputs.value_cache, problem.cache.layout) {}

Tokens TokenSource::block(int request, int query_token, int kv_head, int begin, int end) const {
  return sparse_ ? indexed(request, query_token, kv_head, begin, end) : paged(request, kv_head, begin, end);
}

Tokens TokenSource::paged(int request, int kv_head, int begin, int end) const {
  const auto* pages =
      static_cast<const std::int32_t*>(inputs_.block_table.data) + request * inputs_.block_table.strides[0];
  Tokens tokens;
  for (int t = begin; t < end;) {
    const int first = t % page_size_;
    // In 64 bits: the last page of the longest request may end past 2^31.
    const int stop = static_cast<int>(std::min<std::int64_t>(end, std::int64_t{t} - first + page_size_));
    const std::int64_t page = pages[t / page_size_];
    if (page < 0 || page >= pages_) {
      t = stop;
      continue;
    }
    const std::uint8_t* row = rows_.at(page, first, kv_head);
    const std::uint8_t* value = latent_ ? nullptr : values_.at(page, first, kv_head);
    for (; t < stop; ++t, row += rows_.token_bytes, value += values_.token_bytes) {
      tokens.rows[tokens.count] = row;
      tokens.values[tokens.count] = value;
      tokens.positions[tokens.count++] = t;
    }
  }
  return tokens;
}

Tokens TokenSource::indexed(int request, int query_token, int kv_head, int begin, int end) const {
  const ConstTensorView& view = inputs_.indices;
  const auto* indices =
      static_cast<const std::int32_t*>(view.data) + request * view.strides[0] + query_token * view.strides[1];
  const std::int64_t reach = pages_ * page_size_;
  Tokens tokens;
  for (int t = begin; t < end; ++t) {
    const int index = indices[t];
    if (index < 0 || index >= reach) continue;
    tokens.rows[tokens.count] = rows_.at(index / page_size_, index % page_size_, kv_head);
    tokens.positions[tokens.count++] = t;
  }
  return tokens;
}

}  // namespace flashlatent::cpu
