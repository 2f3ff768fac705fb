// What check_inputs() accepts, as arithmetic for host and device.
#pragma once

#include <cstdint>

#include "core/token_shard.h"
#include "flashlatent/check_inputs.h"

#ifdef __CUDACC__
#define FLASHLATENT_CHECK_FUNCTION __host__ __device__ __forceinline__
#else
#define FLASHLATENT_CHECK_FUNCTION inline
#endif

namespace flashlatent::input_check {

/// The integers of one list of tokens, where they lie, and what bounds them.
struct List {
  InputArgument length_argument = InputArgument::kNone;
  InputArgument page_argument = InputArgument::kNone;
  const std::int32_t* lengths = nullptr;  ///< Null: there are none.
  std::int64_t length_stride = 1;         ///< From one request's to the next one's.
  std::int64_t token_stride = 0;          ///< If each query token has one: from one's to the next one's.
  std::int32_t each = 1;                  ///< Lengths a request: 1, or s_q.
  bool by_token = false;                  ///< Has each query token one?
  const std::int32_t* pages = nullptr;    ///< The page table; null: tokens are named by indices.
  std::int64_t pages_stride = 0;          ///< From one request's row of it to the next.
  std::int32_t columns = 0;
  std::int32_t page_size = 1;
  std::int64_t reach = 0;  ///< Most tokens of a request; by indices: topk.
  std::int64_t cache_pages = 0;
  std::int32_t window = 0;
  bool causal = false;
  TokenShard shard;  ///< Which tokens of a length are here.

  FLASHLATENT_CHECK_FUNCTION std::int32_t length(std::int32_t request, std::int32_t token) const {
    return lengths[request * length_stride + token * token_stride];
  }
};

/// The integers of a call.
struct Tables {
  const std::int32_t* begins = nullptr;  ///< cu_seqlens_q; null: not ragged.
  std::int64_t query_total = 0;          ///< q's tokens; ragged.
  std::int32_t requests = 0;
  std::int32_t query_tokens = 0;  ///< s_q.
  List list[2];                   ///< Of the cache, and of the extra cache.
};

struct Range {
  std::int64_t least, most;
};

FLASHLATENT_CHECK_FUNCTION bool contains(const Range& range, std::int64_t value) {
  return value >= range.least && value <= range.most;
}

FLASHLATENT_CHECK_FUNCTION std::int64_t clamp(std::int64_t value, std::int64_t least, std::int64_t most) {
  return value < least ? least : value > most ? most : value;
}

/// Of cu_seqlens_q[i]. The last entry must be the total, and not too far from the one before it.
FLASHLATENT_CHECK_FUNCTION Range accepted_begin(const Tables& t, std::int32_t i) {
  const std::int64_t before = i == 0 ? 0 : t.begins[i - 1];
  const std::int64_t most = i == 0 ? 0 : before + t.query_tokens;
  const Range range{before, i < t.requests && most > t.query_total ? t.query_total : most};
  const bool by_total = contains(range, t.query_total) || contains(range, t.begins[i]);
  return i == t.requests && by_total ? Range{t.query_total, t.query_total} : range;
}

FLASHLATENT_CHECK_FUNCTION Range accepted_length(const List& list) {
  if (list.shard.is_all()) return {0, list.reach};
  // The context's token that the rank would hold next does not fit.
  return {0, list.reach > INT32_MAX ? INT32_MAX : list.shard.position(static_cast<std::int32_t>(list.reach))};
}

/// How many of a context's tokens are here and in reach.
FLASHLATENT_CHECK_FUNCTION std::int64_t held_in_reach(const List& list, std::int64_t tokens) {
  const std::int64_t few = clamp(tokens, 0, INT32_MAX);
  return clamp(list.shard.is_all() ? few : list.shard.held(static_cast<std::int32_t>(few)), 0, list.reach);
}

/// Of an entry of a page table: what is negative is skipped.
FLASHLATENT_CHECK_FUNCTION Range accepted_page(const List& list) {
  return {INT32_MIN, list.cache_pages - 1};
}

/// Columns of a request's row of the page table whose tokens a query token can see, by the length as it is
/// clamped.
FLASHLATENT_CHECK_FUNCTION Range live_columns(const Tables& t, const List& list, std::int32_t request) {
  std::int64_t length = 0;
  for (std::int32_t token = 0; token < list.each; ++token) {
    const std::int64_t one =
        list.shard.is_all() ? clamp(list.length(request, token), 0, list.reach) : list.length(request, token);
    length = one > length ? one : length;
  }
  std::int64_t tokens = t.query_tokens;
  if (t.begins != nullptr) {
    tokens = clamp(std::int64_t{t.begins[request + 1]} - t.begins[request], 0, tokens);
  }
  std::int64_t first = 0;  // token that the first query token sees
  if (list.window > 0) first = clamp((list.causal ? length - tokens + 1 : length) - list.window, 0, length);
  first = held_in_reach(list, first);
  length = held_in_reach(list, length);
  if (tokens == 0 || first == length) return {0, -1};
  return {first / list.page_size, (length - 1) / list.page_size};
}

/// A place of an argument as a number: of two offences the one of the lower number is reported.
using Place = unsigned long long;  // what CUDA has atomics for
inline constexpr Place kNoPlace = ~Place{0};
inline constexpr int kIndexBits = 30;    // 2^30 columns
inline constexpr int kRequestBits = 20;  // 2^20 requests

FLASHLATENT_CHECK_FUNCTION Place place_of(InputArgument argument, std::int32_t request, std::int32_t index) {
  return static_cast<Place>(argument) << (kIndexBits + kRequestBits) |
         static_cast<Place>(request) << kIndexBits | static_cast<Place>(index);
}

/// The place of cu_seqlens_q[i], where request i - 1 ends.
FLASHLATENT_CHECK_FUNCTION Place begin_place(std::int32_t i) {
  // The last entry's index, 2^20 at most, has room.
  return place_of(InputArgument::kCuSeqlensQ, i == 0 ? 0 : i - 1, i);
}

/// The place of length number `i` of a list, `each` a request.
FLASHLATENT_CHECK_FUNCTION Place length_place(const List& list, std::int32_t i) {
  const std::int32_t request = i / list.each;
  const bool by_token = list.length_argument == InputArgument::kExtraCacheSeqlens;
  return place_of(list.length_argument, request, by_token ? i % list.each : request);
}

FLASHLATENT_CHECK_FUNCTION Place page_place(const List& list, std::int32_t request, std::int32_t column) {
  return place_of(list.page_argument, request, column);
}

FLASHLATENT_CHECK_FUNCTION bool begin_offends(const Tables& t, std::int32_t i) {
  return !contains(accepted_begin(t, i), t.begins[i]);
}
FLASHLATENT_CHECK_FUNCTION bool length_offends(const List& list, std::int32_t i) {
  return !contains(accepted_length(list), list.length(i / list.each, i % list.each));
}
FLASHLATENT_CHECK_FUNCTION bool page_offends(const List& list, std::int32_t page) {
  return !contains(accepted_page(list), page);
}

/// What is wrong at a place.
FLASHLATENT_CHECK_FUNCTION InputOffence offence_at(const Tables& t, Place place) {
  InputOffence offence;
  if (place == kNoPlace) return offence;
  offence.argument = static_cast<InputArgument>(place >> (kIndexBits + kRequestBits));
  offence.request = static_cast<std::int32_t>(place >> kIndexBits & ((1U << kRequestBits) - 1));
  offence.index = static_cast<std::int32_t>(place & ((1U << kIndexBits) - 1));
  Range accepted{0, 0};
  if (offence.argument == InputArgument::kCuSeqlensQ) {
    offence.value = t.begins[offence.index];
    accepted = accepted_begin(t, offence.index);
  }
  for (const List& list : t.list) {
    if (offence.argument == list.page_argument) {
      offence.value = list.pages[offence.request * list.pages_stride + offence.index];
      accepted = accepted_page(list);
    } else if (offence.argument == list.length_argument) {
      offence.value = list.length(offence.request, list.by_token ? offence.index : 0);
      accepted = accepted_length(list);
    }
  }
  offence.least = accepted.least;
  offence.most = accepted.most;
  return offence;
}

/// Of tensors whose shapes fit the problem.
Tables tables_of(const DecodeProblem& problem, const DecodeInputs& inputs);

/// On the host.
Place first_begin(const Tables& tables);  ///< Of cu_seqlens_q alone.
Place first_place(const Tables& tables);

}  // namespace flashlatent::input_check
