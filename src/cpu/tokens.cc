#include "cpu/tokens.h"

#include <algorithm>

#include "core/fp8_584.h"

namespace flashlatent::cpu {

TokenSource::Places::Places(const ConstTensorView& cache, const DecodeProblem::Cache& format)
    : data(static_cast<const std::uint8_t*>(cache.data)) {
  const auto element = static_cast<std::int64_t>(size_of(cache.dtype));
  const bool packed = format.layout == KvLayout::kPacked;
  page_bytes = cache.strides[0] * element;
  token_bytes = cache.strides[!packed ? 1 : 3] * element;
  head_bytes = cache.strides[!packed ? 2 : 1] * element;
  if (format.format == KvFormat::kFp8_584) {  // the view's rows are not tokens
    token_bytes = fp8_584::kDataBytes;
    head_bytes = 0;
  }
}

TokenSource::TokenSource(const DecodeProblem::Cache& format, const ConstTensorView& keys,
                         const ConstTensorView& values, int page_size, bool indexed,
                         const ConstTensorView& entries)
    : entries_(entries),
      indexed_(indexed),
      latent_(format.layout == KvLayout::kLatent),
      has_scales_(format.format == KvFormat::kFp8_584),
      page_size_(page_size),
      pages_(keys.shape[0]),
      rows_(keys, format),
      values_(values, format) {}

TokenSource TokenSource::first(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const bool sparse = problem.sparse.enabled;
  const bool latent = problem.cache.layout == KvLayout::kLatent;
  return {
      problem.cache, latent ? inputs.kv_cache : inputs.key_cache, inputs.value_cache, problem.cache.page_size,
      sparse,        sparse ? inputs.indices : inputs.block_table};
}

TokenSource TokenSource::extra(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const DecodeProblem::Cache::Extra& extra = problem.cache.extra;
  return {problem.cache,
          inputs.extra_kv_cache,
          {},
          extra.page_size,
          extra.indexed,
          extra.indexed ? inputs.extra_indices : inputs.extra_block_table};
}

Tokens TokenSource::block(int request, int query_token, int kv_head, int begin, int end) const {
  return indexed_ ? indexed(request, query_token, kv_head, begin, end) : paged(request, kv_head, begin, end);
}

void TokenSource::add(std::int64_t page, std::int64_t offset, int kv_head, int position,
                      Tokens& tokens) const {
  const int i = tokens.count++;
  tokens.rows[i] = rows_.at(page, offset, kv_head);
  tokens.positions[i] = position;
  if (!latent_) tokens.values[i] = values_.at(page, offset, kv_head);
  if (has_scales_) tokens.scales[i] = rows_.at(page, 0, 0) + fp8_584::scale_offset(page_size_, offset);
}

Tokens TokenSource::paged(int request, int kv_head, int begin, int end) const {
  const auto* pages = static_cast<const std::int32_t*>(entries_.data) + request * entries_.strides[0];
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
    for (std::int64_t offset = first; t < stop; ++t, ++offset) add(page, offset, kv_head, t, tokens);
  }
  return tokens;
}

Tokens TokenSource::indexed(int request, int query_token, int kv_head, int begin, int end) const {
  const auto* indices = static_cast<const std::int32_t*>(entries_.data) + request * entries_.strides[0] +
                        query_token * entries_.strides[1];
  const std::int64_t reach = pages_ * page_size_;
  Tokens tokens;
  for (int t = begin; t < end; ++t) {
    const int index = indices[t];
    if (index < 0 || index >= reach) continue;
    add(index / page_size_, index % page_size_, kv_head, t, tokens);
  }
  return tokens;
}

}  // namespace flashlatent::cpu
