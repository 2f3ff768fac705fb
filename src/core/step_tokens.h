// What prepare_step() writes, row by row: arithmetic for host and device.
#pragma once

#include <cstdint>

#include "core/divisor.h"
#include "core/host_device.h"
#include "flashlatent/prepare_step.h"

namespace flashlatent::step_tokens {

struct Query {
  const std::int32_t* lengths;
  const std::int32_t* begins;  ///< cu_seqlens_q; null: each request has `tokens` query tokens.
  std::int32_t batch;
  Divisor tokens;
  std::int64_t rows;
};

/// A row's query token; `position` is negative where there is none.
struct Place {
  std::int32_t request, position;
};

struct Cache {
  const std::int32_t* pages;
  std::int64_t pages_stride;
  std::int32_t columns;
  Divisor page_size, ratio;
  void* slots;
  bool wide_slots;  ///< int64
  std::int32_t *lengths, *request_lengths, *indices;
  std::int64_t indices_stride;
  std::int32_t count;  ///< Indices a row.
};

struct Call {
  Query query;
  std::int32_t caches;
  std::int32_t* positions;
  Cache cache[kMostStepCaches];
};

/// The last request that begins at or before `row`; whatever cu_seqlens_q holds, one of the batch.
FLASHLATENT_HOST_DEVICE std::int32_t request_of(const Query& query, std::int64_t row) {
  std::int32_t first = 0, last = query.batch - 1;
  while (first < last) {
    const std::int32_t middle = first + (last - first + 1) / 2;
    if (query.begins[middle] <= row) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return first;
}

FLASHLATENT_HOST_DEVICE Place place_of(const Query& query, std::int64_t row) {
  std::int32_t request;
  std::int64_t behind;  // query tokens of the request from this one on
  if (query.begins == nullptr) {
    request = query.tokens.quotient(static_cast<std::int32_t>(row));
    behind = (request + 1LL) * query.tokens.value - row;
  } else {
    request = request_of(query, row);
    if (row < query.begins[request] || row >= query.begins[request + 1]) return {request, -1};
    behind = query.begins[request + 1] - row;
  }
  const std::int64_t position = query.lengths[request] - behind;
  return {request, position < 0 ? -1 : static_cast<std::int32_t>(position)};
}

/// Tokens of the cache that stand for whole groups of the first `tokens` of a context.
FLASHLATENT_HOST_DEVICE std::int32_t cached(const Cache& cache, std::int32_t tokens) {
  return tokens <= 0 ? 0 : cache.ratio.quotient(tokens);
}

/// The slot of a request's token number `token` in the cache, or -1.
FLASHLATENT_HOST_DEVICE std::int64_t slot_of(const Cache& cache, std::int32_t request, std::int32_t token) {
  const std::int32_t column = cache.page_size.quotient(token);
  if (column >= cache.columns) return -1;
  const std::int32_t page = cache.pages[request * cache.pages_stride + column];
  return page < 0 ? -1
                  : std::int64_t{page} * cache.page_size.value + (token - column * cache.page_size.value);
}

/// A row's slot and length.
FLASHLATENT_HOST_DEVICE void write_row(const Cache& cache, Place place, std::int64_t row) {
  const std::int32_t tokens = place.position + 1, seen = cached(cache, tokens);
  if (cache.lengths != nullptr) cache.lengths[row] = seen;
  if (cache.slots == nullptr) return;
  const bool ends = tokens > 0 && seen * std::int64_t{cache.ratio.value} == tokens;
  const std::int64_t slot = ends ? slot_of(cache, place.request, seen - 1) : -1;
  if (cache.wide_slots) {
    static_cast<std::int64_t*>(cache.slots)[row] = slot;
  } else {
    static_cast<std::int32_t*>(cache.slots)[row] = slot > INT32_MAX ? -1 : static_cast<std::int32_t>(slot);
  }
}

/// Index number `i` of a row.
FLASHLATENT_HOST_DEVICE void write_index(const Cache& cache, Place place, std::int64_t row, std::int32_t i) {
  const std::int32_t seen = cached(cache, place.position + 1);
  const std::int32_t first = seen > cache.count ? seen - cache.count : 0;
  const std::int64_t slot = i < seen - first ? slot_of(cache, place.request, first + i) : -1;
  cache.indices[row * cache.indices_stride + i] = slot > INT32_MAX ? -1 : static_cast<std::int32_t>(slot);
}

FLASHLATENT_HOST_DEVICE void write_request(const Cache& cache, const Query& query, std::int32_t request) {
  if (cache.request_lengths != nullptr) {
    cache.request_lengths[request] = cached(cache, query.lengths[request]);
  }
}

}  // namespace flashlatent::step_tokens
