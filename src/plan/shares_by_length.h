// Partition::kSharesByLength: the parts are given to items so that the longest part is as short as can be.
// The combine step merges every item, also one that has a single part. One round.
#pragma once

#include "plan/shares.h"

namespace flashlatent::schedule {

/// The most requests: one for each lane of a warp.
inline constexpr std::int32_t kMostByLength = 32;

/// The number of shares of an item if none has more than `most` blocks.
FLASHLATENT_HOST_DEVICE std::int32_t shares_within(std::int32_t blocks, std::int32_t most) {
  if (blocks <= most) return 1;
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(blocks) + most - 1) /
                                   static_cast<std::uint32_t>(most));
}

/// The least number of blocks of the longest share for which the parts suffice. `blocks`: of all items;
/// `shares_at(most)`: shares of all items if none has more than `most` blocks.
template <class SharesAt>
FLASHLATENT_HOST_DEVICE std::int32_t least_longest_share(const Geometry& g, std::int32_t blocks,
                                                         SharesAt&& shares_at) {
  // Only the last share of each item may be nearly empty.
  std::int32_t low = shares_within(blocks, g.parts);
  std::int32_t high = shares_within(blocks, g.parts - g.requests);
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (shares_at(middle) <= g.parts) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace flashlatent::schedule
