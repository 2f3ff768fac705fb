#include "core/input_check.h"

#include "core/message.h"

namespace flashlatent {

namespace input_check {

Tables tables_of(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const auto& [query, cache, sparse, options] = problem;
  auto integers = [](const ConstTensorView& view) { return static_cast<const std::int32_t*>(view.data); };
  Tables tables;
  tables.requests = query.batch;
  tables.query_tokens = query.tokens;
  tables.page_size = cache.page_size;
  tables.cache_pages = (cache.layout == KvLayout::kLatent ? inputs.kv_cache : inputs.key_cache).shape[0];
  tables.causal = options.causal;
  tables.window = options.window;
  tables.sparse = sparse.enabled;
  if (query.ragged) {
    tables.begins = integers(inputs.cu_seqlens_q);
    tables.query_total = inputs.q.shape[0];
  }
  if (sparse.enabled) {
    tables.lengths = integers(inputs.topk_length);
    tables.reach = sparse.topk;
    return tables;
  }
  tables.lengths = integers(inputs.cache_seqlens);
  tables.pages = integers(inputs.block_table);
  tables.pages_stride = inputs.block_table.strides[0];
  tables.columns = cache.max_pages;
  tables.reach = std::int64_t{cache.max_pages} * cache.page_size;
  return tables;
}

Place first_begin(const Tables& t) {
  for (std::int32_t i = 0; t.begins != nullptr && i <= t.requests; ++i) {
    if (begin_offends(t, i)) return begin_place(i);
  }
  return kNoPlace;
}

Place first_place(const Tables& t) {
  if (const Place place = first_begin(t); place != kNoPlace) return place;
  if (t.lengths == nullptr) return kNoPlace;
  for (std::int32_t request = 0; request < t.requests; ++request) {
    if (length_offends(t, request)) return length_place(t, request);
  }
  if (t.sparse) return kNoPlace;
  for (std::int32_t request = 0; request < t.requests; ++request) {
    const std::int32_t* row = t.pages + request * t.pages_stride;
    const Range live = live_columns(t, request);
    for (std::int64_t column = live.least; column <= live.most; ++column) {
      if (page_offends(t, row[column])) return page_place(request, static_cast<std::int32_t>(column));
    }
  }
  return kNoPlace;
}

}  // namespace input_check

Status to_status(const InputOffence& o) {
  switch (o.argument) {
    case InputArgument::kNone:
      return {};
    case InputArgument::kCuSeqlensQ:
      return invalid_argument(
          "cu_seqlens_q[", o.index, "] is ", o.value, ", where request ", o.request,
          o.index == 0 ? " begins; " : " ends; ", o.least == o.most ? "" : message(o.least, " to "), o.most,
          o.least == o.most ? " is" : " are",
          " accepted: it begins with 0, never falls, gives no request more than s_q tokens, and ends at the "
          "total of q's tokens");
    case InputArgument::kCacheSeqlens:
      return invalid_argument("cache_seqlens[", o.index, "] is ", o.value, "; request ", o.request,
                              " may have 0 to ", o.most,
                              " tokens, as its row of block_table has room for (columns x page_size)");
    case InputArgument::kTopkLength:
      return invalid_argument("topk_length[", o.index, "] is ", o.value, "; request ", o.request,
                              " may have 0 to topk = ", o.most, " indices");
    case InputArgument::kBlockTable:
      return invalid_argument("block_table[", o.request, ", ", o.index, "] is ", o.value,
                              ", where tokens of request ", o.request, " are, and the cache has ", o.most + 1,
                              " pages; a lower number is accepted, or a negative one, whose tokens are "
                              "skipped");
  }
  return {StatusCode::kInternal, message("an offence's argument is ", static_cast<int>(o.argument))};
}

}  // namespace flashlatent
