#include "cpu/tokens.h"

#include <algorithm>

namespace flashlatent::cpu {

TokenSource::Places::Places(const ConstTensorView& cache, KvLayout layout, const LatentFormat& format)
    : data(static_cast<const std::uint8_t*>(cache.data)) {
  const auto element = static_cast<std::int64_t>(size_of(cache.dtype));
  const bool packed = layout == KvLayout::kPacked;
  page_bytes = cache.strides[0] * element;
  token_bytes = format.token_stride(cache.strides[!packed ? 1 : 3] * element);
  head_bytes = format.is_record() ? 0 : cache.strides[!packed ? 2 : 1] * element;
}

TokenSource::TokenSource(KvLayout layout, const LatentFormat& format, const ConstTensorView& keys,
                         const ConstTensorView& values, int page_size, bool indexed,
                         const ConstTensorView& entries)
    : entries_(entries),
      indexed_(indexed),
      latent_(layout == KvLayout::kLatent),
      format_(&format),
      page_size_(page_size),
      pages_(keys.shape[0]),
      rows_(keys, layout, format),
      values_(values, layout, format) {}

TokenSource TokenSource::first(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const auto& cache = problem.cache;
  const bool sparse = problem.sparse.enabled;
  const bool latent = cache.layout == KvLayout::kLatent;
  return {cache.layout,    format_of(cache), latent ? inputs.kv_cache : inputs.key_cache, inputs.value_cache,
          cache.page_size, sparse,           sparse ? inputs.indices : inputs.block_table};
}

TokenSource TokenSource::extra(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const ExtraCache& extra = problem.cache.extra;
  return {problem.cache.layout,
          extra_format_of(problem.cache),
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
  if (format_->is_record()) {
    tokens.scales[i] = rows_.at(page, 0, 0) + format_->scales_at(page_size_, offset, rows_.token_bytes);
  }
}

Tokens TokenSource::paged(int request, int kv_head, int begin, int end) const {
  const auto* pages = static_cast<const std::int32_t*>(entries_.data) + request * entries_.strides[0];
  Tokens tokens;
  tokens.format = format_;
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
  tokens.format = format_;
  for (int t = begin; t < end; ++t) {
    const int index = indices[t];
    if (index < 0 || index >= reach) continue;
    add(index / page_size_, index % page_size_, kv_head, t, tokens);
  }
  return tokens;
}

}  // namespace flashlatent::cpu
