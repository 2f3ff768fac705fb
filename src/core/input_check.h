// What check_inputs() accepts, as arithmetic for host and device.
#pragma once

#include <cstdint>

#include "flashlatent/check_inputs.h"

#ifdef __CUDACC__
#define FLASHLATENT_CHECK_FUNCTION __host__ __device__ __forceinline__
#else
#define FLASHLATENT_CHECK_FUNCTION inline
#endif

namespace flashlatent::input_check {

/// The integers of a call, where they lie, and what bounds them.
struct Tables {
  const std::int32_t* begins = nullptr;   ///< cu_seqlens_q; null: not ragged.
  const std::int32_t* lengths = nullptr;  ///< cache_seqlens or topk_length; null: there are none.
  const std::int32_t* pages = nullptr;    ///< block_table; sparse: none.
  std::int64_t pages_stride = 0;          ///< From one request's row of it to the next.
  std::int64_t query_total = 0;           ///< q's tokens; ragged.
  std::int64_t reach = 0;                 ///< Most tokens of a request; sparse: topk.
  std::int64_t cache_pages = 0;
  std::int32_t requests = 0;
  std::int32_t query_tokens = 0;  ///< s_q.
  std::int32_t columns = 0;       ///< Of block_table.
  std::int32_t page_size = 1;
  std::int32_t window = 0;
  bool causal = false;
  bool sparse = false;
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

FLASHLATENT_CHECK_FUNCTION Range accepted_length(const Tables& t) {
  return {0, t.reach};
}

/// Of an entry of block_table: what is negative is skipped.
FLASHLATENT_CHECK_FUNCTION Range accepted_page(const Tables& t) {
  return {INT32_MIN, t.cache_pages - 1};
}

/// Columns of a request's row of block_table whose tokens a query token can see, by the length as it is
/// clamped.
FLASHLATENT_CHECK_FUNCTION Range live_columns(const Tables& t, std::int32_t request) {
  const std::int64_t length = clamp(t.lengths[request], 0, t.reach);
  std::int64_t tokens = t.query_tokens;
  if (t.begins != nullptr) {
    tokens = clamp(std::int64_t{t.begins[request + 1]} - t.begins[request], 0, tokens);
  }
  std::int64_t first = 0;  // token that the first query token sees
  if (t.window > 0) first = clamp((t.causal ? length - tokens + 1 : length) - t.window, 0, length);
  if (tokens == 0 || first == length) return {0, -1};
  return {first / t.page_size, (length - 1) / t.page_size};
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

FLASHLATENT_CHECK_FUNCTION Place length_place(const Tables& t, std::int32_t request) {
  return place_of(t.sparse ? InputArgument::kTopkLength : InputArgument::kCacheSeqlens, request, request);
}

FLASHLATENT_CHECK_FUNCTION Place page_place(std::int32_t request, std::int32_t column) {
  return place_of(InputArgument::kBlockTable, request, column);
}

FLASHLATENT_CHECK_FUNCTION bool begin_offends(const Tables& t, std::int32_t i) {
  return !contains(accepted_begin(t, i), t.begins[i]);
}
FLASHLATENT_CHECK_FUNCTION bool length_offends(const Tables& t, std::int32_t request) {
  return !contains(accepted_length(t), t.lengths[request]);
}
FLASHLATENT_CHECK_FUNCTION bool page_offends(const Tables& t, std::int32_t page) {
  return !contains(accepted_page(t), page);
}

/// What is wrong at a place.
FLASHLATENT_CHECK_FUNCTION InputOffence offence_at(const Tables& t, Place place) {
  InputOffence offence;
  if (place == kNoPlace) return offence;
  offence.argument = static_cast<InputArgument>(place >> (kIndexBits + kRequestBits));
  offence.request = static_cast<std::int32_t>(place >> kIndexBits & ((1U << kRequestBits) - 1));
  offence.index = static_cast<std::int32_t>(place & ((1U << kIndexBits) - 1));
  Range accepted;
  if (offence.argument == InputArgument::kCuSeqlensQ) {
    offence.value = t.begins[offence.index];
    accepted = accepted_begin(t, offence.index);
  } else if (offence.argument == InputArgument::kBlockTable) {
    offence.value = t.pages[offence.request * t.pages_stride + offence.index];
    accepted = accepted_page(t);
  } else {
    offence.value = t.lengths[offence.index];
    accepted = accepted_length(t);
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
