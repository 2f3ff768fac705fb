// Where each part is a share of one item (is_shares()): its cut, and its blocks.
#pragma once

#include "plan/schedule.h"

namespace flashlatent::schedule {

/// A part that is share number `share` of the `shares` that an item's blocks are cut into. One round.
struct ShareCut {
  std::int32_t shares;  ///< 0: the part has nothing to do.
  std::int32_t request;
  std::int32_t share;
  std::int32_t partial;  ///< Where its partial result goes: the part's own number.

  friend FLASHLATENT_HOST_DEVICE bool operator==(const ShareCut& a, const ShareCut& b) {
    return a.shares == b.shares && a.request == b.request && a.share == b.share && a.partial == b.partial;
  }
};
static_assert(sizeof(ShareCut) == sizeof(Cut));

/// A plan keeps both kinds of cut in the same 16 bytes; the geometry's partition tells which they are.
FLASHLATENT_HOST_DEVICE Cut stored(const ShareCut& cut) {
  return {cut.shares, cut.request, cut.share, cut.partial};
}

/// A share in a plan's bytes, of which each field is read where it is asked for: a device would wait for all
/// fields of a copy.
class StoredShare {
 public:
  FLASHLATENT_HOST_DEVICE explicit StoredShare(const Cut& cut) : cut_(cut) {}
  FLASHLATENT_HOST_DEVICE std::int32_t shares() const { return cut_.round; }
  FLASHLATENT_HOST_DEVICE std::int32_t request() const { return cut_.request; }
  FLASHLATENT_HOST_DEVICE std::int32_t share() const { return cut_.block; }
  FLASHLATENT_HOST_DEVICE std::int32_t partial() const { return cut_.partial; }

 private:
  const Cut& cut_;
};
FLASHLATENT_HOST_DEVICE ShareCut share_cut(const Cut& stored) {
  const StoredShare share(stored);
  return {share.shares(), share.request(), share.share(), share.partial()};
}
/// After its share is done: nothing is left of the part.
FLASHLATENT_HOST_DEVICE void finish_share(Cut& stored) {
  stored.round = 0;
}

/// A part that has nothing to do, after `used` others.
FLASHLATENT_HOST_DEVICE ShareCut no_share(const Geometry& g, std::int32_t used) {
  return {0, g.requests, 0, used};
}

/// Of an item's blocks, counted from its first one, where share number `share` begins; of share = shares
/// their end. Likewise of a segment's blocks for the CTAs of a team, which share it by their ranks.
FLASHLATENT_HOST_DEVICE std::int32_t share_begin(std::int32_t blocks, std::int32_t shares,
                                                 std::int32_t share) {
  // blocks * share / shares; a device would divide 64 bits for long, and signed numbers for longer than
  // these.
  const std::uint32_t b = static_cast<std::uint32_t>(blocks), n = static_cast<std::uint32_t>(shares),
                      i = static_cast<std::uint32_t>(share);
  return static_cast<std::int32_t>(b / n * i + b % n * i / n);
}

}  // namespace flashlatent::schedule
