// Single shares: the line is cut so that each part has one segment. It is the third way of cutting a line,
// beside equal lengths (line.h) and packing (packing.h).
//
// Equal cuts of 40 requests on 132 parts give most parts the end of one request and the begin of another.
// These are two segments, each of which takes as long as three blocks to begin and to write. With single
// shares each request has parts of its own, as many as make the longest part shortest. Parts that remain have
// nothing to do. They lie between the other parts: calls took up to 3 % longer with all of them at the end.
#pragma once

#include "plan/block_cost.h"
#include "plan/line.h"
#include "plan/shares.h"
#include "plan/shares_by_length.h"

namespace flashlatent::schedule {

/// The most requests that may be cut into single shares.
inline constexpr std::int32_t kMostSingleShares = 256;

/// The most parts: single_share_cut() multiplies two numbers of parts in 32 bits.
inline constexpr std::int32_t kMostSingleShareParts = 46000;
static_assert(kMostSingleShareParts + std::int64_t{kMostSingleShareParts} * kMostSingleShareParts <=
              0x7FFFFFFF);

/// May the line be cut into single shares? With fewer than two parts a request other ways are better.
FLASHLATENT_HOST_DEVICE bool may_share_line(const Geometry& g) {
  return has_order(g) && g.rounds == 1 && g.requests > 1 && g.requests <= kMostSingleShares &&
         2 * g.requests <= g.parts && g.parts <= kMostSingleShareParts;
}

/// Are single shares taken, if they use `used` parts of up to `most` blocks each? Yes, where no part is
/// longer than a part of equal cuts may be.
FLASHLATENT_HOST_DEVICE bool takes_single_shares(const Geometry& g, std::int64_t round_cost,
                                                 std::int32_t most, std::int32_t used) {
  const std::int64_t longest = g.cost.per_split + static_cast<std::int64_t>(most) * block_cost_among(g, used);
  return longest <= quotient(round_cost, g.parts) + g.cost.per_split + g.cost.per_block;
}

/// Cut k; its `partial` is 0. ends[r]: the number of shares of requests 0 to r.
template <class Lengths>
FLASHLATENT_HOST_DEVICE Cut single_share_cut(const Geometry& g, const std::int32_t* ends,
                                             const Lengths& lengths, std::int32_t k) {
  // The first share that begins at or after part k. A part whose share is also the next part's is empty.
  const std::int32_t used = ends[g.requests - 1];
  const std::int32_t share = (k * used + g.parts - 1) / g.parts;
  std::int32_t low = 0, high = g.requests;  // searched: the request of that share
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (ends[middle] > share) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == g.requests) return {g.rounds, 0, 0, 0};
  const std::int32_t begin = low == 0 ? 0 : ends[low - 1];
  const std::int32_t blocks = blocks_of(g, length_of(g, lengths, low));
  return {0, low, share_begin(blocks, ends[low] - begin, share - begin), 0};
}

}  // namespace flashlatent::schedule
