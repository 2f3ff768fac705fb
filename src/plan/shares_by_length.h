// Partition::kSharesByLength: each item has as many parts as make the longest of all parts shortest, and is
// merged by the combine step, also if it has one part. One round.
#pragma once

#include "plan/shares.h"

namespace flashlatent::schedule {

/// The most requests: each lane of a warp can have one.
inline constexpr std::int32_t kMostByLength = 32;

/// The shares of an item, of `most` blocks or less.
FLASHLATENT_HOST_DEVICE std::int32_t shares_within(std::int32_t blocks, std::int32_t most) {
  if (blocks <= most) return 1;
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(blocks) + most - 1) /
                                   static_cast<std::uint32_t>(most));
}

/// The least number of blocks of the longest share for which there are enough parts. `blocks`: of all items;
/// `shares_at(most)`: how many shares of `most` blocks or less these take.
template <class SharesAt>
FLASHLATENT_HOST_DEVICE std::int32_t least_longest_share(const Geometry& g, std::int32_t blocks,
                                                         SharesAt&& shares_at) {
  // Each item's last share may be nearly empty, but no other.
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
