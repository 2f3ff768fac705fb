// From a plan's cuts to segments.
#pragma once

#include "plan/shares.h"

namespace flashlatent::schedule {

/// Walks the segments of one part. Lengths are read again: a plan made for other lengths is still right,
/// since only cuts decide what is partial (with fixed_split the lengths do, and must be the plan's).
/// `successors`: the plan's, or null.
/// kMayShare: whether there may be kShared or kEven, for which other kernels have no code then. No kernel
/// walks what is kByLength.
/// kLooksAhead: whether next() reads what the one after it needs. Who keeps a walker in memory waits for what
/// it reads.
template <bool kMayShare, bool kMayBeByLength = false, bool kLooksAhead = true>
class Walker {
 public:
  FLASHLATENT_HOST_DEVICE Walker(const Geometry& geometry, const Cut& begin, const Cut& end,
                                 const std::int32_t* successors, const std::int32_t* lengths)
      : geometry_(geometry), successors_(successors), lengths_(lengths), at_(begin), end_(end) {
    if constexpr (kLooksAhead) look_ahead();
  }

  FLASHLATENT_HOST_DEVICE bool next(Segment& segment) {
    if constexpr (!kLooksAhead) look_ahead();
    if (shares()) {
      if (at_.round == 0) return false;
      segment = share();
      at_.round = 0;
      return true;
    }
    const bool in_last_item = same_item(at_, end_);
    if (at_.round >= geometry_.rounds || (in_last_item && at_.block >= end_.block)) return false;
    const std::int32_t length = tokens_of(geometry_, length_ahead_);
    const std::int32_t blocks = blocks_of(geometry_, length);
    std::int32_t stop = in_last_item ? end_.block : blocks;
    bool partial = at_.block > 0 || in_last_item;
    bool item_done = true;
    if (geometry_.fixed_split > 0) {
      partial = blocks > geometry_.fixed_split;
      if (at_.block + geometry_.fixed_split < stop) {
        stop = at_.block + geometry_.fixed_split;
        item_done = false;
      }
    }
    segment.round = at_.round;
    segment.request = at_.request;
    segment.length = length;
    segment.block_begin = at_.block < blocks ? at_.block : blocks;
    segment.block_end = stop < blocks ? stop : blocks;
    segment.slot = partial ? at_.slot++ : -1;
    if (!item_done || in_last_item) {
      at_.block = stop;
    } else {
      at_.block = 0;
      at_.request = successor_ahead_;
      if (at_.request < 0) {
        at_.request = ~at_.request;
        ++at_.round;
      }
    }
    if constexpr (kLooksAhead) look_ahead();
    return true;
  }

  /// Where a walk to the same end would go on from here.
  FLASHLATENT_HOST_DEVICE const Cut& at() const { return at_; }

  /// The only segment of a part by shape (kWhole, or kShared with one request), which next() would give.
  FLASHLATENT_HOST_DEVICE Segment only() const {
    static_assert(kLooksAhead);
    if (shares()) return share();
    const std::int32_t length = tokens_of(geometry_, length_ahead_);
    return {at_.round, at_.request, length, 0, blocks_of(geometry_, length), -1};
  }

 private:
  FLASHLATENT_HOST_DEVICE bool shares() const { return kMayShare && geometry_.whole >= kShared; }

  /// By length a share that is all of its request is merged, too.
  FLASHLATENT_HOST_DEVICE std::int32_t slot_of_share() const {
    if constexpr (kMayBeByLength) {
      if (geometry_.whole == kByLength) return at_.slot;
    }
    return at_.round > 1 ? at_.slot : -1;
  }

  /// A part is one segment then.
  FLASHLATENT_HOST_DEVICE Segment share() const {
    const std::int32_t length = tokens_of(geometry_, length_ahead_);
    const std::int32_t blocks = blocks_of(geometry_, length);
    return {0,
            at_.request,
            length,
            share_begin(blocks, at_.round, at_.block),
            share_begin(blocks, at_.round, at_.block + 1),
            slot_of_share()};
  }

  /// Reads the next segment's length, and which request comes after it, before they are needed: on a device
  /// nobody waits for them then.
  FLASHLATENT_HOST_DEVICE void look_ahead() {
    const bool more = shares() ? at_.round > 0 : at_.round < geometry_.rounds;
    length_ahead_ = more ? length_of(geometry_, lengths_, at_.request) : 0;
    if (successors_ == nullptr) {
      successor_ahead_ = at_.request + 1 < geometry_.requests ? at_.request + 1 : ~0;
    } else if (more && !same_item(at_, end_)) {
      successor_ahead_ = successors_[at_.request];
    }
  }

  const Geometry& geometry_;
  const std::int32_t* successors_;
  const std::int32_t* lengths_;
  std::int32_t length_ahead_ = 0;
  std::int32_t successor_ahead_ = 0;
  Cut at_;
  Cut end_;
};
using PartWalker = Walker<true, true>;

/// May a part, from `begin` to `end`, be one item and all of it (which it is if item_after() is where it
/// ends)? Then nobody need walk it.
FLASHLATENT_HOST_DEVICE bool may_be_one_item(const Geometry& g, const Cut& begin, const Cut& end) {
  return g.fixed_split == 0 && begin.round < g.rounds && begin.block == 0 && end.block == 0;
}

/// The begin of the item after the cut's, in the plan's order.
FLASHLATENT_HOST_DEVICE Cut item_after(const Geometry& g, const Cut& cut, const std::int32_t* successors) {
  if (successors == nullptr) return next_item(g, cut);
  const std::int32_t request = successors[cut.request];
  return request < 0 ? Cut{cut.round + 1, ~request, 0, 0} : Cut{cut.round, request, 0, 0};
}

}  // namespace flashlatent::schedule
