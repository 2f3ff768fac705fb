#include "plan/token_lists.h"

#include <algorithm>
#include <limits>

#include "flashlatent/decode.h"
#include "plan/held_tokens.h"

namespace flashlatent::schedule {

namespace {

/// Tokens of a page table with `max_pages` columns.
std::int32_t reach_of_pages(int max_pages, int page_size) {
  const std::int64_t reach = std::int64_t{max_pages} * page_size;
  return static_cast<std::int32_t>(std::min<std::int64_t>(reach, std::numeric_limits<std::int32_t>::max()));
}

std::int32_t most_tokens(const TokenList& list) {
  return list.window > 0 ? std::min(list.window, list.reach) : list.reach;
}

ListLengths list_lengths(const ConstTensorView& view) {
  return {static_cast<const std::int32_t*>(view.data), view.strides[0], view.rank == 2 ? view.strides[1] : 0};
}

}  // namespace

void set_lists(Geometry& g, const DecodeProblem& problem) {
  const auto& [query, cache, sparse, options] = problem;
  const ExtraCache& extra = cache.extra;
  g.length_sharers = query.tokens;
  g.requests = query.batch * query.tokens;
  g.lists = 2;
  if (sparse.enabled) {
    g.list[0] = {.reach = sparse.topk};
  } else {
    g.list[0] = {.reach = reach_of_pages(cache.max_pages, cache.page_size),
                 .window = options.window,
                 .causal = options.causal};
  }
  g.list[1] = {.reach = extra.indexed ? extra.topk : reach_of_pages(extra.max_pages, extra.page_size)};
  g.max_tokens = union_length(g, most_tokens(g.list[0]), most_tokens(g.list[1]));
}

Geometry with_lengths(Geometry g, const PlanLengths& lengths) {
  if (g.lists == 1 && lengths.cache.rank == 2) g.length_sharers = 1;
  return g;
}

UnionLengths union_lengths(const PlanLengths& lengths) {
  return {{list_lengths(lengths.cache), list_lengths(lengths.extra)}};
}

UnionLengths union_lengths(const PlanLengths& lengths, const HeldTokens& held) {
  UnionLengths lists = union_lengths(lengths);
  lists.list[0].spans = held.spans;
  lists.list[0].spans_stride = held.spans_stride;
  return lists;
}

}  // namespace flashlatent::schedule
