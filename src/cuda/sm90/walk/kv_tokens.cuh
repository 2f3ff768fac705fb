// The tokens of a block and their places, by the page table or by the indices of sparse decode.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>

#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::sm90 {

/// The blocks of one request that a loader loads.
struct BlockRange {
  const std::int32_t* entries;  // the request's row of the page table, or its query token's indices
  int length;                   // tokens
  int kv_head;
  int begin, end;  // blocks
};

__device__ __forceinline__ BlockRange block_range(const CacheArguments& cache,
                                                  const schedule::Segment& segment, const RowTile& tile) {
  return {cache.entries + tile.request * cache.entries_stride + tile.first_token * cache.entries_token_stride,
          segment.length, tile.kv_head, segment.block_begin, segment.block_end};
}

/// The entry for a token; -1 past the end, where entries are never read.
__device__ __forceinline__ int entry_of(const CacheArguments& cache, const BlockRange& range, int token) {
  if (token >= range.length) return -1;
  return __ldg(range.entries + (cache.indexed ? token : cache.page_size.quotient(token)));
}

/// Does an entry name a page of the cache?
__device__ __forceinline__ bool is_page(const CacheArguments& cache, int entry) {
#if FLASHLATENT_DEVICE_CHECKS
  if (entry >= cache.pages || entry < -1) {
    printf("flashlatent: block %d: the page table names page %d; pages are 0 to %d\n", blockIdx.x, entry,
           cache.pages - 1);
  }
#endif
  return entry >= 0 && entry < cache.pages;
}

/// A token's place in the cache.
struct TokenPlace {
  int page;  // -1: a dead token
  int token;
};

__device__ __forceinline__ TokenPlace place_of(const CacheArguments& cache, int entry, int token) {
  const int page = cache.indexed && entry >= 0 ? cache.page_size.quotient(entry) : entry;
  return {is_page(cache, page) ? page : -1, cache.page_size.remainder(cache.indexed ? entry : token)};
}

/// Elements (fp8_656: bytes) from the cache's begin to a place that is valid.
__device__ __forceinline__ std::int64_t offset_of(const CacheArguments& cache, TokenPlace place,
                                                  int kv_head) {
  return place.page * cache.page_stride + place.token * cache.token_stride + kv_head * cache.head_stride;
}

}  // namespace flashlatent::sm90
