// Cuts and blocks where each part is a share of one item (is_shares()).
#pragma once

#include "plan/schedule.h"

namespace flashlatent::schedule {

/// A part that is share number `share` of the `shares` equal runs of an item's blocks. One round.
struct ShareCut {
  std::int32_t shares;  ///< 0: the part has nothing to do.
  std::int32_t request;
  std::int32_t share;
  std::int32_t partial;  ///< Place of its partial result: the part's own number.

  friend FLASHLATENT_HOST_DEVICE bool operator==(const ShareCut& a, const ShareCut& b) {
    return a.shares == b.shares && a.request == b.request && a.share == b.share && a.partial == b.partial;
  }
};
static_assert(sizeof(ShareCut) == sizeof(Cut));

/// The 16 bytes of a Cut that hold a share. The geometry's partition tells whether a plan has cuts or shares.
FLASHLATENT_HOST_DEVICE Cut stored(const ShareCut& cut) {
  return {cut.shares, cut.request, cut.share, cut.partial};
}

/// A share in a plan's memory. Each field is read where it is used: with a copy a device would wait for all
/// fields.
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
/// Marks the part as done.
FLASHLATENT_HOST_DEVICE void finish_share(Cut& stored) {
  stored.round = 0;
}

/// The cut of a part that has nothing to do, after `used` parts that have work.
FLASHLATENT_HOST_DEVICE ShareCut no_share(const Geometry& g, std::int32_t used) {
  return {0, g.requests, 0, used};
}

/// The block of an item at which share number `share` begins; for share = shares, the item's end. The CTAs of
/// a team divide a segment's blocks in the same way, by their ranks.
FLASHLATENT_HOST_DEVICE std::int32_t share_begin(std::int32_t blocks, std::int32_t shares,
                                                 std::int32_t share) {
  // blocks * share / shares in unsigned 32 bits: 64-bit and signed divisions take a device longer.
  const std::uint32_t b = static_cast<std::uint32_t>(blocks), n = static_cast<std::uint32_t>(shares),
                      i = static_cast<std::uint32_t>(share);
  return static_cast<std::int32_t>(b / n * i + b % n * i / n);
}

}  // namespace flashlatent::schedule
