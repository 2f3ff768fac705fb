// Which tokens a block has, and where they are, when an item attends to two lists of them
// (plan/token_lists.h): of two caches in one softmax, each by a page table or by indices; the second list may
// be empty. A block has tokens of one list. A loader gets an address for each token and knows of no caches.
#pragma once

#include "cuda/sm90/walk/kv_tokens.cuh"

namespace flashlatent::sm90 {

/// Does a loader take lists? Loader::kLists says so.
template <class Loader>
inline constexpr bool kTakesLists = requires {
  requires Loader::kLists;
};

/// Lengths of items, as a walk of the plan reads them.
template <bool kLists>
__device__ __forceinline__ auto item_lengths(const CacheArguments& cache) {
  if constexpr (kLists) {
    return cache.list_lengths;
  } else {
    return cache.lengths;
  }
}

/// An item's lists, as a loader sees them.
struct ListRange {
  const std::int32_t* entries[2];
  int first;      // of the first list's entries, or of its tokens by page table: the item's first
  int tokens[2];  // of each list
  int blocks;     // of the first list
};

/// One item's blocks.
struct ListedRange {
  ListRange lists;
  int kv_head;
  int begin, end;  // blocks
};

__device__ __forceinline__ ListedRange listed_range(const DecodeArguments& args,
                                                    const schedule::Segment& segment, const RowTile& tile) {
  const schedule::UnionLengths& lengths = args.cache.list_lengths;
  const TokenSpan first = schedule::span_of(args.geometry, lengths, 0, segment.request);
  ListedRange range;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const ListedCache& cache = args.cache.listed[i];
    range.lists.entries[i] =
        cache.entries + tile.request * cache.entries_stride + tile.first_token * cache.entries_token_stride;
  }
  range.lists.first = first.begin;
  range.lists.tokens[0] = first.count();
  range.lists.tokens[1] = schedule::span_of(args.geometry, lengths, 1, segment.request).count();
  range.lists.blocks = (first.count() + 63) / 64;
  range.kv_head = tile.kv_head;
  range.begin = segment.block_begin;
  range.end = segment.block_end;
  return range;
}

/// A loader's range of a segment.
template <class Loader>
__device__ __forceinline__ auto range_of(const DecodeArguments& args, const schedule::Segment& segment,
                                         const RowTile& tile) {
  if constexpr (kTakesLists<Loader>) {
    return listed_range(args, segment, tile);
  } else {
    return block_range(args.cache, segment, tile);
  }
}

/// A token of a block: its list, and its place in the list.
struct ListPlace {
  bool second;
  int token;
};
__device__ __forceinline__ ListPlace place_in_list(const ListRange& lists, int block, int row) {
  const bool second = block >= lists.blocks;
  return {second, (second ? block - lists.blocks : block) * 64 + row};
}

/// The entry for a token, or -1 past the list's end, where entries are never read. kSelects: `lists` is in
/// registers; otherwise ptxas may keep it in memory, to index it.
template <bool kSelects = false>
__device__ __forceinline__ int entry_of(const CacheArguments& cache, const ListRange& lists, ListPlace at) {
  const auto of_list = [&](const auto(&both)[2]) {
    if constexpr (kSelects) {
      return at.second ? both[1] : both[0];
    } else {
      return both[at.second];
    }
  };
  if (at.token >= of_list(lists.tokens)) return -1;
  const ListedCache& of = cache.listed[at.second];
  const int token = at.token + (at.second ? 0 : lists.first);
  return __ldg(of_list(lists.entries) + (of.indexed ? token : of.page_size.quotient(token)));
}

/// Where a token's data are, or null if it is dead; and its place in the page.
struct ListedToken {
  const std::uint8_t* data;
  int page_size;
  int in_page;
};

__device__ __forceinline__ ListedToken token_of(const CacheArguments& cache, const ListRange& lists,
                                                ListPlace at, int entry, int kv_head) {
  const ListedCache& of = cache.listed[at.second];
  const int token = at.token + (at.second ? 0 : lists.first);
  const int page = of.indexed && entry >= 0 ? of.page_size.quotient(entry) : entry;
  ListedToken found = {nullptr, of.page_size.value, of.page_size.remainder(of.indexed ? entry : token)};
  if (page >= 0 && page < of.pages) {
    found.data = of.data + page * of.page_bytes + found.in_page * of.token_bytes + kv_head * of.head_bytes;
  }
  return found;
}

}  // namespace flashlatent::sm90
