#include "core/input_check.h"

#include "core/message.h"

namespace flashlatent {

namespace input_check {

namespace {

const std::int32_t* integers(const ConstTensorView& view) {
  return static_cast<const std::int32_t*>(view.data);
}

void set_lengths(const ConstTensorView& lengths, InputArgument argument, List& list) {
  list.length_argument = argument;
  list.lengths = integers(lengths);
  list.length_stride = lengths.strides[0];
  list.by_token = lengths.rank == 2;
  if (!list.by_token) return;
  list.token_stride = lengths.strides[1];
  list.each = static_cast<std::int32_t>(lengths.shape[1]);
}

void set_pages(const ConstTensorView& table, InputArgument argument, int page_size, List& list) {
  list.page_argument = argument;
  list.pages = integers(table);
  list.pages_stride = table.strides[0];
  list.columns = static_cast<std::int32_t>(table.shape[1]);
  list.page_size = page_size;
  list.reach = table.shape[1] * page_size;
}

List first_list(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const auto& [query, cache, sparse, options] = problem;
  List list;
  if (sparse.enabled) {
    set_lengths(inputs.topk_length, InputArgument::kTopkLength, list);
    list.reach = sparse.topk;
    return list;
  }
  set_lengths(inputs.cache_seqlens, InputArgument::kCacheSeqlens, list);
  set_pages(inputs.block_table, InputArgument::kBlockTable, cache.page_size, list);
  list.cache_pages = (cache.layout == KvLayout::kLatent ? inputs.kv_cache : inputs.key_cache).shape[0];
  list.visibility = {options.window, options.causal};
  list.shard = TokenShard(options.shard.rank, options.shard.world, options.shard.run);
  return list;
}

List extra_list(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const ExtraCache& extra = problem.cache.extra;
  List list;
  if (!extra.enabled) return list;
  if (extra.indexed) {
    set_lengths(inputs.extra_topk_length, InputArgument::kExtraTopkLength, list);
    list.reach = extra.topk;
    return list;
  }
  set_lengths(inputs.extra_cache_seqlens, InputArgument::kExtraCacheSeqlens, list);
  set_pages(inputs.extra_block_table, InputArgument::kExtraBlockTable, extra.page_size, list);
  list.cache_pages = inputs.extra_kv_cache.shape[0];
  return list;
}

}  // namespace

Tables tables_of(const DecodeProblem& problem, const DecodeInputs& inputs) {
  Tables tables;
  tables.requests = problem.query.batch;
  tables.query_tokens = problem.query.tokens;
  if (problem.query.ragged) {
    tables.begins = integers(inputs.cu_seqlens_q);
    tables.query_total = inputs.q.shape[0];
  }
  tables.list[0] = first_list(problem, inputs);
  tables.list[1] = extra_list(problem, inputs);
  return tables;
}

Place first_begin(const Tables& t) {
  for (std::int32_t i = 0; t.begins != nullptr && i <= t.requests; ++i) {
    if (begin_offends(t, i)) return begin_place(i);
  }
  return kNoPlace;
}

namespace {

Place first_of_list(const Tables& t, const List& list) {
  if (list.lengths == nullptr) return kNoPlace;
  for (std::int32_t i = 0; i < t.requests * list.each; ++i) {
    if (length_offends(list, i)) return length_place(list, i);
  }
  for (std::int32_t request = 0; list.pages != nullptr && request < t.requests; ++request) {
    const std::int32_t* row = list.pages + request * list.pages_stride;
    const Range live = live_columns(t, list, request);
    for (std::int64_t column = live.least; column <= live.most; ++column) {
      if (page_offends(list, row[column])) {
        return page_place(list, request, static_cast<std::int32_t>(column));
      }
    }
  }
  return kNoPlace;
}

}  // namespace

Place first_place(const Tables& t) {
  if (const Place place = first_begin(t); place != kNoPlace) return place;
  for (const List& list : t.list) {
    if (const Place place = first_of_list(t, list); place != kNoPlace) return place;
  }
  return kNoPlace;
}

}  // namespace input_check

namespace {

/// Where a length is: "[request]", or "[request, token]".
std::string length_index(const InputOffence& o) {
  return message("[", o.request, o.index == 0 ? std::string() : message(", ", o.index), "]");
}

}  // namespace

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
      return invalid_argument("topk_length", length_index(o), " is ", o.value, "; request ", o.request,
                              " may have 0 to topk = ", o.most, " indices");
    case InputArgument::kBlockTable:
      return invalid_argument("block_table[", o.request, ", ", o.index, "] is ", o.value,
                              ", where tokens of request ", o.request, " are, and the cache has ", o.most + 1,
                              " pages; a lower number is accepted, or a negative one, whose tokens are "
                              "skipped");
    case InputArgument::kExtraCacheSeqlens:
      return invalid_argument("extra_cache_seqlens", length_index(o), " is ", o.value, "; request ",
                              o.request, " may have 0 to ", o.most,
                              " tokens, as its row of extra_block_table has room for (columns x page_size)");
    case InputArgument::kExtraTopkLength:
      return invalid_argument("extra_topk_length", length_index(o), " is ", o.value, "; request ", o.request,
                              " may have 0 to the extra topk = ", o.most, " indices");
    case InputArgument::kExtraBlockTable:
      return invalid_argument("extra_block_table[", o.request, ", ", o.index, "] is ", o.value,
                              ", where tokens of request ", o.request, " are, and the extra cache has ",
                              o.most + 1,
                              " pages; a lower number is accepted, or a negative one, whose tokens are "
                              "skipped");
  }
  return {StatusCode::kInternal, message("an offence's argument is ", static_cast<int>(o.argument))};
}

}  // namespace flashlatent
