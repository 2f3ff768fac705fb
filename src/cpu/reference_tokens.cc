#include "cpu/reference_tokens.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "core/visible.h"

namespace flashlatent::cpu {

namespace {

/// Lengths are (batch) or (batch, s_q).
std::int32_t length_at(const ConstTensorView& lengths, int request, int token) {
  const std::int64_t column = lengths.rank == 2 ? token * lengths.strides[1] : 0;
  return static_cast<const std::int32_t*>(lengths.data)[request * lengths.strides[0] + column];
}

/// Adds tokens [begin, end) of a context, found by a page table; distances count from token `last`. Where
/// ranks share the context, only the rank's tokens are added; the row has room for `reach` of them.
void add_pages(const ConstTensorView& table, const ConstTensorView& cache, std::int64_t page_size,
               const ContextShard& shard, std::int64_t reach, int request, std::int64_t begin,
               std::int64_t end, std::int64_t last, bool extra, std::vector<Seen>& seen) {
  const auto* pages = static_cast<const std::int32_t*>(table.data) + request * table.strides[0];
  for (std::int64_t t = std::max<std::int64_t>(begin, 0); t < end; ++t) {
    if (t / shard.run % shard.world != shard.rank) continue;
    const std::int64_t slot = t / shard.run / shard.world * shard.run + t % shard.run;
    if (slot >= reach) break;
    const std::int64_t page = pages[slot / page_size];
    if (page < 0 || page >= cache.shape[0]) continue;  // skipped
    seen.push_back({{page, slot % page_size, extra}, t - last});
  }
}

/// Adds the tokens that a query token's indices name: `topk`, or as many as its request's length says.
void add_indices(const ConstTensorView& all, const ConstTensorView& lengths, const ConstTensorView& cache,
                 std::int64_t page_size, int request, int token, bool extra, std::vector<Seen>& seen) {
  const auto* indices =
      static_cast<const std::int32_t*>(all.data) + request * all.strides[0] + token * all.strides[1];
  std::int64_t count = all.shape[2];
  if (lengths.present()) count = std::clamp<std::int64_t>(length_at(lengths, request, token), 0, count);
  for (std::int64_t i = 0; i < count; ++i) {
    if (indices[i] < 0 || indices[i] >= cache.shape[0] * page_size) continue;  // skipped
    seen.push_back({{indices[i] / page_size, indices[i] % page_size, extra}, 0});
  }
}

/// Adds the tokens of the cache, by its page table.
void add_by_pages(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
                  std::vector<Seen>& seen) {
  const auto& [query, cache, sparse, options] = problem;
  const std::int64_t reach = std::int64_t{cache.max_pages} * cache.page_size;
  const std::int64_t stored = std::max(length_at(inputs.cache_seqlens, request, token), 0);
  const std::int64_t length = options.shard.world == 1 ? std::min(stored, reach) : stored;
  const Visibility visibility{options.window, options.causal};
  const TokenSpan own = visibility.seen(static_cast<std::int32_t>(length),
                                        visibility.later(query_tokens(problem, inputs, request), token));
  add_pages(inputs.block_table, cache.layout == KvLayout::kLatent ? inputs.kv_cache : inputs.key_cache,
            cache.page_size, options.shard, reach, request, own.begin, own.end, length - 1, false, seen);
}

}  // namespace

int query_tokens(const DecodeProblem& problem, const DecodeInputs& inputs, int request) {
  if (!problem.query.ragged) return problem.query.tokens;
  const auto* begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data);
  return begins[request + 1] - begins[request];
}

std::vector<Seen> seen_by(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token) {
  const auto& cache = problem.cache;
  const ExtraCache& extra = cache.extra;
  std::vector<Seen> seen;
  if (problem.sparse.enabled) {
    add_indices(inputs.indices, inputs.topk_length, inputs.kv_cache, cache.page_size, request, token, false,
                seen);
  } else {
    add_by_pages(problem, inputs, request, token, seen);
  }
  if (!extra.enabled) return seen;
  if (extra.indexed) {
    add_indices(inputs.extra_indices, inputs.extra_topk_length, inputs.extra_kv_cache, extra.page_size,
                request, token, true, seen);
  } else {
    const std::int64_t reach = std::int64_t{extra.max_pages} * extra.page_size;
    const std::int64_t length =
        std::clamp<std::int64_t>(length_at(inputs.extra_cache_seqlens, request, token), 0, reach);
    add_pages(inputs.extra_block_table, inputs.extra_kv_cache, extra.page_size, {}, reach, request, 0, length,
              length - 1, true, seen);
  }
  return seen;
}

std::vector<int> repeats_of(const std::vector<Seen>& seen, bool by_indices) {
  std::vector<int> repeats(seen.size(), 1);
  if (!by_indices) return repeats;
  std::vector<std::size_t> order(seen.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) {
    const Place& place = seen[i].place;
    return std::tuple(place.extra, place.page, place.offset);
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && key(order[end]) == key(order[begin])) ++end;
    for (std::size_t i = begin; i < end; ++i) repeats[order[i]] = static_cast<int>(end - begin);
  }
  return repeats;
}

}  // namespace flashlatent::cpu
