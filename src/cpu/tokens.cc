#include "cpu/tokens.h"

#include <algorithm>

namespace flashlatent::cpu {

TokenSource::TokenSource(const DecodeProblem& problem, const DecodeInputs& inputs)
    : inputs_(inputs),
      sparse_(problem.sparse.enabled),
      page_size_(problem.cache.page_size),
      cache_(static_cast<const std::uint8_t*>(inputs.kv_cache.data)) {
  const auto element = static_cast<std::int64_t>(size_of(inputs.kv_cache.dtype));
  page_bytes_ = inputs.kv_cache.strides[0] * element;
  token_bytes_ = inputs.kv_cache.strides[1] * element;
  head_bytes_ = inputs.kv_cache.strides[2] * element;
}

Tokens TokenSource::block(int request, int query_token, int kv_head, int length, int index) const {
  // In 64 bits: the block after the last one of the longest request may begin past 2^31.
  const auto begin = static_cast<int>(std::min(std::int64_t{index} * kBlockTokens, std::int64_t{length}));
  const int end = std::min(length - begin, kBlockTokens) + begin;
  const std::int64_t head = kv_head * head_bytes_;
  return sparse_ ? indexed(request, query_token, head, begin, end) : paged(request, head, begin, end);
}

Tokens TokenSource::paged(int request, std::int64_t head, int begin, int end) const {
  const auto* pages =
      static_cast<const std::int32_t*>(inputs_.block_table.data) + request * inputs_.block_table.strides[0];
  Tokens tokens;
  for (int t = begin; t < end;) {
    const int first = t % page_size_;
    const int stop = std::min(end, t - first + page_size_);
    const std::int64_t page = pages[t / page_size_];
    if (page < 0 || page >= inputs_.kv_cache.shape[0]) {
      t = stop;
      continue;
    }
    const std::uint8_t* row = cache_ + page * page_bytes_ + first * token_bytes_ + head;
    for (; t < stop; ++t, row += token_bytes_) {
      tokens.rows[tokens.count] = row;
      tokens.positions[tokens.count++] = t;
    }
  }
  return tokens;
}

Tokens TokenSource::indexed(int request, int query_token, std::int64_t head, int begin, int end) const {
  const ConstTensorView& view = inputs_.indices;
  const auto* indices =
      static_cast<const std::int32_t*>(view.data) + request * view.strides[0] + query_token * view.strides[1];
  const std::int64_t reach = inputs_.kv_cache.shape[0] * page_size_;
  Tokens tokens;
  for (int t = begin; t < end; ++t) {
    const int index = indices[t];
    if (index < 0 || index >= reach) continue;
    tokens.rows[tokens.count] =
        cache_ + index / page_size_ * page_bytes_ + index % page_size_ * token_bytes_ + head;
    tokens.positions[tokens.count++] = t;
  }
  return tokens;
}

}  // namespace flashlatent::cpu
