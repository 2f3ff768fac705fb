// What a query token sees of its request's tokens: arithmetic for host and device.
//
//   Visibility    the rule of a call
//   TokenPrefix   what a query token sees: tokens below `end`
//   TokenSpan     the same with a window, or of the tokens that a rank holds: tokens [begin, end)
//   RowSet        the other way round: the rows of a tile that see a token
//
// Both kinds of what is seen have contains(token), and bits(start, live): of the block of 64 tokens from
// `start` on those that are seen and live.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace flashlatent {

/// All tokens of a block, as bits.
inline constexpr std::uint64_t kAllLive = ~0ULL;

/// The first `count` tokens of a block.
FLASHLATENT_HOST_DEVICE std::uint64_t low_tokens(int count) {
  return count <= 0 ? 0 : count >= 64 ? kAllLive : (1ULL << count) - 1;
}

/// Tokens below `end`; none if that is not positive.
struct TokenPrefix {
  std::int32_t end;

  FLASHLATENT_HOST_DEVICE bool contains(std::int32_t token) const { return token < end; }
  FLASHLATENT_HOST_DEVICE std::uint64_t bits(std::int32_t start = 0, std::uint64_t live = kAllLive) const {
    return live & low_tokens(end - start);
  }
  /// With tokens counted from `start` on.
  FLASHLATENT_HOST_DEVICE TokenPrefix from(std::int32_t start) const { return {end - start}; }
};

/// Tokens [begin, end); none if `end` is not above `begin`.
struct TokenSpan {
  std::int32_t begin, end;

  FLASHLATENT_HOST_DEVICE std::int32_t count() const { return end - begin; }
  FLASHLATENT_HOST_DEVICE bool contains(std::int32_t token) const { return token >= begin && token < end; }
  FLASHLATENT_HOST_DEVICE std::uint64_t bits(std::int32_t start = 0, std::uint64_t live = kAllLive) const {
    return live & low_tokens(end - start) & ~low_tokens(begin - start);
  }
};

/// The rule of a call. A request's query tokens are the last of its tokens.
struct Visibility {
  std::int32_t window = 0;  ///< The most tokens that a query token sees, the last ones; 0: any number.
  bool causal = false;      ///< A query token does not see those after it.

  /// Query tokens after number `token` of `tokens` that it does not see.
  FLASHLATENT_HOST_DEVICE std::int32_t later(std::int32_t tokens, std::int32_t token) const {
    return causal ? tokens - 1 - token : 0;
  }
  /// The end of what it sees of `length` tokens, all but the later ones; below 0 if those are more.
  template <class Int>
  FLASHLATENT_HOST_DEVICE Int end(Int length, Int tokens, std::int32_t token) const {
    return causal ? length - tokens + token + 1 : length;
  }
  /// The same from their number; 0 if those are more.
  FLASHLATENT_HOST_DEVICE static std::int32_t end(std::int32_t length, std::int32_t later) {
    return length > later ? length - later : 0;
  }
  /// What the query token with that number of later ones sees.
  FLASHLATENT_HOST_DEVICE TokenSpan seen(std::int32_t length, std::int32_t later) const {
    const std::int32_t below = end(length, later);
    return {window > 0 && below > window ? below - window : 0, below};
  }
  /// The same from its end, which may be below 0. In this form and by a reference, because ptxas makes other
  /// code of gqa_16 otherwise.
  FLASHLATENT_HOST_DEVICE static TokenSpan last(std::int32_t end, const std::int32_t& window) {
    return {window > 0 ? not_below_0(end - window) : 0, end};
  }
  /// With a causal mask and no window: the first of `tokens` query tokens that sees `token` of `length`. All
  /// query tokens after it do, too.
  FLASHLATENT_HOST_DEVICE static std::int32_t first_to_see(std::int32_t length, std::int32_t tokens,
                                                           std::int32_t token) {
    return token - length + tokens;
  }

 private:
  FLASHLATENT_HOST_DEVICE static std::int32_t not_below_0(std::int32_t x) { return x > 0 ? x : 0; }
};

/// The rows of a tile that see a token: those from `first` on. For tiles whose rows see prefixes, of which no
/// row's is shorter than the one before it.
struct RowSet {
  std::int32_t first;

  FLASHLATENT_HOST_DEVICE bool contains(std::int32_t row) const { return row >= first; }
  /// Those of `rows` rows that see `token`; `seen(row)`: what a row sees.
  template <class Seen>
  FLASHLATENT_HOST_DEVICE static RowSet that_see(std::int32_t token, std::int32_t rows, Seen seen) {
    std::int32_t row = 0;
    while (row < rows && !seen(row).contains(token)) ++row;
    return {row};
  }
};

}  // namespace flashlatent
