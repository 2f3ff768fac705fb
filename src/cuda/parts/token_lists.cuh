// Which tokens a query token attends to, and where they are, when there may be two lists of them: of two caches
// in one softmax, each by a page table or by indices. The second list's tokens follow the first one's; a block
// may have tokens of both. Whoever loads gets an address a token and knows of no caches.
#pragma once

#include "cuda/parts/kv_tokens.cuh"

namespace flashlatent::parts {

/// Does a loader take lists? Loader::kLists says so.
template <class Loader>
inline constexpr bool kTakesLists = requires {
  requires Loader::kLists;
};

/// Of a list, the tokens that a query token sees.
struct TokenSpan {
  int begin, end;
  __device__ __forceinline__ int count() const { return end - begin; }
};

__device__ __forceinline__ TokenSpan span_of(const TokenList& list, int request, int query_token) {
  int end = list.most;
  if (list.lengths != nullptr) {
    const int given =
        __ldg(list.lengths + request * list.lengths_stride + query_token * list.lengths_token_stride);
    end = max(0, min(given, end));
  }
  if (list.causal_tokens > 0) end = max(0, min(end, end - list.causal_tokens + query_token + 1));
  return {list.window > 0 ? max(0, end - list.window) : 0, end};
}

/// How many tokens a query token sees of both lists.
__device__ __forceinline__ int tokens_of_lists(const CacheArguments& cache, int request, int query_token) {
  return span_of(cache.lists[0], request, query_token).count() +
         span_of(cache.lists[1], request, query_token).count();
}

/// A segment that was cut for the most tokens there may be, as it is with the tokens there are.
template <class Segment>
__device__ __forceinline__ void clip_to_lists(const DecodeArguments& args, Segment& segment) {
  const int request = args.sharers.quotient(segment.request);
  segment.length =
      tokens_of_lists(args.cache, request, segment.request - request * args.sharers.value);
  const int blocks = schedule::blocks_of(args.geometry, segment.length);
  segment.block_begin = min(segment.block_begin, blocks);
  segment.block_end = min(segment.block_end, blocks);
}

/// What a query token sees of both lists, as loaders count: token t of a block is the (first + t)-th of the first
/// list, or from `split` on the (t - split)-th of the second one.
struct ListRange {
  const std::int32_t* entries[2];
  int first, split, length;
};

__device__ __forceinline__ ListRange list_range(const CacheArguments& cache, const BlockRange& range) {
  ListRange lists;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const TokenList& list = cache.lists[i];
    lists.entries[i] = list.entries + range.request * list.entries_stride +
                       range.query_token * list.entries_token_stride;
  }
  const TokenSpan span = span_of(cache.lists[0], range.request, range.query_token);
  lists.first = span.begin;
  lists.split = span.count();
  lists.length = range.length;
  return lists;
}

/// The entry for a token, or -1 past the end: those entries are never read.
__device__ __forceinline__ int entry_of(const CacheArguments& cache, const ListRange& range, int token) {
  if (token >= range.length) return -1;
  const bool second = token >= range.split;
  const TokenList& list = cache.lists[second];
  const int place = second ? token - range.split : token + range.first;
  return __ldg(range.entries[second] + (list.indexed ? place : list.page_size.quotient(place)));
}

/// Where a token's data are, or null if it does not count; and its place in the page.
struct ListedToken {
  const std::uint8_t* data;
  int page_size;
  int in_page;
};

__device__ __forceinline__ ListedToken token_of(const CacheArguments& cache, const ListRange& range, int entry,
                                                int token, int kv_head) {
  const bool second = token >= range.split;
  const TokenList& list = cache.lists[second];
  const int place = second ? token - range.split : token + range.first;
  const int page = list.indexed && entry >= 0 ? list.page_size.quotient(entry) : entry;
  ListedToken found = {nullptr, list.page_size.value, list.page_size.remainder(list.indexed ? entry : place)};
  if (page >= 0 && page < list.pages) {
    found.data = list.data + page * list.page_bytes + found.in_page * list.token_bytes + kv_head * list.head_bytes;
  }
  return found;
}

}  // namespace flashlatent::parts
