// Parts that are shares of one item each (kShared, kEven, kByLength), and shares of a segment's blocks.
#pragma once

#include "plan/schedule.h"

namespace flashlatent::schedule {

/// With kShared: the parts of the requests before `request`. Each has one; of the others it has its share.
FLASHLATENT_HOST_DEVICE std::int32_t parts_before(const Geometry& g, const std::int64_t* cost_prefix,
                                                  std::int32_t request) {
  const std::int64_t total = cost_prefix[g.requests], before = cost_prefix[request];
  const int shift = total >> 40 != 0 ? 24 : 0;  // the product might overflow
  const std::int64_t others = g.parts - g.requests;
  if (total == 0) return static_cast<std::int32_t>(request + others * request / g.requests);
  return static_cast<std::int32_t>(request + others * (before >> shift) / (total >> shift));
}

/// With kEven: the parts of an item, part k, and what is merged. Parts that are left over have nothing to do.
FLASHLATENT_HOST_DEVICE std::int32_t even_shares(const Geometry& g) {
  return g.parts / g.requests;
}
/// One that is left over, after `used` others.
FLASHLATENT_HOST_DEVICE Cut no_part(const Geometry& g, std::int32_t used) {
  return {0, g.requests, 0, used};
}
FLASHLATENT_HOST_DEVICE Cut even_cut(const Geometry& g, std::int32_t k) {
  const std::int32_t shares = even_shares(g);
  if (k >= g.requests * shares) return no_part(g, g.requests * shares);
  return {shares, k / shares, k % shares, k};
}
FLASHLATENT_HOST_DEVICE Merge even_merge(const Geometry& g, std::int32_t request) {
  const std::int32_t shares = even_shares(g);
  return {0, request, request * shares, (request + 1) * shares};
}

/// With kByLength: the shares of an item, of `most` blocks or less.
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

/// With kShared: part k.
FLASHLATENT_HOST_DEVICE Cut shared_cut(const Geometry& g, const std::int64_t* cost_prefix, std::int32_t k) {
  if (k >= g.parts) return {0, g.requests, 0, g.parts};
  std::int32_t low = 0, high = g.requests;  // the last request with no more parts before it
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (parts_before(g, cost_prefix, middle) <= k) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const std::int32_t first = parts_before(g, cost_prefix, low);
  return {parts_before(g, cost_prefix, low + 1) - first, low, k - first, k};
}

/// Of a segment's blocks, counted from its first one, where the share of a team's CTA `rank` begins; of
/// rank = team their end. Likewise of a request's blocks, with kShared, kEven and kByLength, where
/// a part's share begins.
FLASHLATENT_HOST_DEVICE std::int32_t share_begin(std::int32_t blocks, std::int32_t team, std::int32_t rank) {
  // blocks * rank / team; a device would divide 64 bits for long, and signed numbers for longer than these.
  const std::uint32_t b = static_cast<std::uint32_t>(blocks), t = static_cast<std::uint32_t>(team),
                      r = static_cast<std::uint32_t>(rank);
  return static_cast<std::int32_t>(b / t * r + b % t * r / t);
}

}  // namespace flashlatent::schedule
