// What check_inputs() accepts: arithmetic for host and device.
#pragma once

#include <cstdint>

#include "core/token_shard.h"
#include "core/visible.h"
#include "flashlatent/check_inputs.h"

namespace flashlatent::input_check {

/// The integers that describe one list of tokens: where they lie, and their bounds.
struct List {
  InputArgument length_argument = InputArgument::kNone;
  InputArgument page_argument = InputArgument::kNone;
  const std::int32_t* lengths = nullptr;  ///< Null: there are none.
  std::int64_t length_stride = 1;         ///< Elements from one request to the next.
  /// Elements from one query token to the next, if each has a length.
  std::int64_t token_stride = 0;
  std::int32_t each = 1;                ///< Lengths of a request: 1 or s_q.
  bool by_token = false;                ///< Does each query token have a length?
  const std::int32_t* pages = nullptr;  ///< The page table; null: tokens are given by indices.
  std::int64_t pages_stride = 0;        ///< Entries from one request's row to the next.
  std::int32_t columns = 0;
  std::int32_t page_size = 1;
  std::int64_t reach = 0;  ///< The most tokens of a request; with indices: topk.
  std::int64_t cache_pages = 0;
  Visibility visibility;
  TokenShard shard;  ///< Which tokens of a context this rank holds.

  FLASHLATENT_HOST_DEVICE std::int32_t length(std::int32_t request, std::int32_t token) const {
    return lengths[request * length_stride + token * token_stride];
  }
};

/// All integers of a call.
struct Tables {
  const std::int32_t* begins = nullptr;  ///< cu_seqlens_q; null: not ragged.
  std::int64_t query_total = 0;          ///< Query tokens of q in all, where ragged.
  std::int32_t requests = 0;
  std::int32_t query_tokens = 0;  ///< s_q.
  List list[2];                   ///< The cache's list, and the extra cache's.
};

struct Range {
  std::int64_t least, most;
};

FLASHLATENT_HOST_DEVICE bool contains(const Range& range, std::int64_t value) {
  return value >= range.least && value <= range.most;
}

FLASHLATENT_HOST_DEVICE std::int64_t clamp(std::int64_t value, std::int64_t least, std::int64_t most) {
  return value < least ? least : value > most ? most : value;
}

/// The range of cu_seqlens_q[i]. The last entry must be the total, and at most s_q above the entry before it.
FLASHLATENT_HOST_DEVICE Range accepted_begin(const Tables& t, std::int32_t i) {
  const std::int64_t before = i == 0 ? 0 : t.begins[i - 1];
  const std::int64_t most = i == 0 ? 0 : before + t.query_tokens;
  const Range range{before, i < t.requests && most > t.query_total ? t.query_total : most};
  const bool by_total = contains(range, t.query_total) || contains(range, t.begins[i]);
  return i == t.requests && by_total ? Range{t.query_total, t.query_total} : range;
}

FLASHLATENT_HOST_DEVICE Range accepted_length(const List& list) {
  if (list.shard.is_all()) return {0, list.reach};
  // A context may end just before the first of the rank's tokens that would not fit.
  return {0, list.reach > INT32_MAX ? INT32_MAX : list.shard.position(static_cast<std::int32_t>(list.reach))};
}

/// Tokens of a context that this rank holds, as far as the page table reaches.
FLASHLATENT_HOST_DEVICE std::int64_t held_in_reach(const List& list, std::int64_t tokens) {
  const std::int64_t few = clamp(tokens, 0, INT32_MAX);
  return clamp(list.shard.is_all() ? few : list.shard.held(static_cast<std::int32_t>(few)), 0, list.reach);
}

/// The range of an entry of a page table; negative entries are skipped, so they are legal.
FLASHLATENT_HOST_DEVICE Range accepted_page(const List& list) {
  return {INT32_MIN, list.cache_pages - 1};
}

/// The columns of a request's row whose tokens a query token can see, by the clamped length.
FLASHLATENT_HOST_DEVICE Range live_columns(const Tables& t, const List& list, std::int32_t request) {
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
  const Visibility& visibility = list.visibility;
  std::int64_t first = 0;  // the first token that the first query token sees
  if (visibility.window > 0) {
    first = clamp(visibility.end(length, tokens, 0) - visibility.window, 0, length);
  }
  first = held_in_reach(list, first);
  length = held_in_reach(list, length);
  if (tokens == 0 || first == length) return {0, -1};
  return {first / list.page_size, (length - 1) / list.page_size};
}

/// A place in an argument as a number; the offence with the lowest number is reported.
using Place = unsigned long long;  // a type that CUDA has atomics for
inline constexpr Place kNoPlace = ~Place{0};
inline constexpr int kIndexBits = 30;    // 2^30 columns
inline constexpr int kRequestBits = 20;  // 2^20 requests

FLASHLATENT_HOST_DEVICE Place place_of(InputArgument argument, std::int32_t request, std::int32_t index) {
  return static_cast<Place>(argument) << (kIndexBits + kRequestBits) |
         static_cast<Place>(request) << kIndexBits | static_cast<Place>(index);
}

/// The place of cu_seqlens_q[i], the end of request i - 1.
FLASHLATENT_HOST_DEVICE Place begin_place(std::int32_t i) {
  // kIndexBits has room for the last entry's index, 2^20 at most.
  return place_of(InputArgument::kCuSeqlensQ, i == 0 ? 0 : i - 1, i);
}

/// The place of length number `i` of a list with `each` lengths a request.
FLASHLATENT_HOST_DEVICE Place length_place(const List& list, std::int32_t i) {
  const std::int32_t request = i / list.each;
  const bool is_row = list.length_argument == InputArgument::kCacheSeqlens;
  return place_of(list.length_argument, request, is_row ? request : i % list.each);
}

FLASHLATENT_HOST_DEVICE Place page_place(const List& list, std::int32_t request, std::int32_t column) {
  return place_of(list.page_argument, request, column);
}

FLASHLATENT_HOST_DEVICE bool begin_offends(const Tables& t, std::int32_t i) {
  return !contains(accepted_begin(t, i), t.begins[i]);
}
FLASHLATENT_HOST_DEVICE bool length_offends(const List& list, std::int32_t i) {
  return !contains(accepted_length(list), list.length(i / list.each, i % list.each));
}
FLASHLATENT_HOST_DEVICE bool page_offends(const List& list, std::int32_t page) {
  return !contains(accepted_page(list), page);
}

/// What is wrong at a place.
FLASHLATENT_HOST_DEVICE InputOffence offence_at(const Tables& t, Place place) {
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

/// Fills Tables from tensors whose shapes fit the problem.
Tables tables_of(const DecodeProblem& problem, const DecodeInputs& inputs);

/// The first offence, on the host.
Place first_begin(const Tables& tables);  ///< in cu_seqlens_q alone
Place first_place(const Tables& tables);

}  // namespace flashlatent::input_check
