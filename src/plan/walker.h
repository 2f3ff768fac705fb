// From a plan's cuts to segments. There is a walker for whole items and splits on the line, one for shares
// and one for turns; Walker uses the walker of the geometry's partition.
#pragma once

#include "plan/line.h"
#include "plan/shares.h"
#include "plan/turns.h"

namespace flashlatent::schedule {

/// The state of a walk over one part. Lengths are read again: a plan made for other lengths is still right,
/// because only cuts decide what is partial. With kFixedSplits lengths decide, and must be those of the plan.
struct Walk {
  const Geometry& geometry;
  const std::int32_t* successors;    ///< The plan's successors, or null.
  std::int32_t length_ahead = 0;     ///< Length of the next segment's request, as the call gives it.
  std::int32_t successor_ahead = 0;  ///< Successor of the next segment's request.
  Cut at;
  Cut end;
};

/// kLine, kWhole and kFixedSplits: from a cut to the next one, item by item.
struct LineWalker {
  FLASHLATENT_HOST_DEVICE static bool more(const Walk& walk) { return walk.at.round < walk.geometry.rounds; }

  /// Sets the next segment; returns whether there is one. length_ahead and successor_ahead must be set.
  FLASHLATENT_HOST_DEVICE static bool next(Walk& walk, Segment& segment) {
    const Geometry& g = walk.geometry;
    Cut& at = walk.at;
    const bool in_last_item = same_item(at, walk.end);
    if (at.round >= g.rounds || (in_last_item && at.block >= walk.end.block)) return false;
    const std::int32_t length = tokens_of(g, walk.length_ahead);
    const std::int32_t blocks = blocks_of(g, length);
    std::int32_t stop = in_last_item ? walk.end.block : blocks;
    bool partial = at.block > 0 || in_last_item;
    bool item_done = true;
    if (g.fixed_split > 0) {
      partial = blocks > g.fixed_split;
      if (at.block + g.fixed_split < stop) {
        stop = at.block + g.fixed_split;
        item_done = false;
      }
    }
    segment.round = at.round;
    segment.request = at.request;
    segment.length = length;
    segment.block_begin = at.block < blocks ? at.block : blocks;
    segment.block_end = stop < blocks ? stop : blocks;
    segment.partial = partial ? at.partial++ : -1;
    if (!item_done || in_last_item) {
      at.block = stop;
    } else {
      at.block = 0;
      at.request = walk.successor_ahead;
      if (at.request < 0) {
        at.request = ~at.request;
        ++at.round;
      }
    }
    return true;
  }

  /// The one segment of a part that is a whole item.
  FLASHLATENT_HOST_DEVICE static Segment only(const Walk& walk) {
    const std::int32_t length = tokens_of(walk.geometry, walk.length_ahead);
    return {walk.at.round, walk.at.request, length, 0, blocks_of(walk.geometry, length), -1};
  }
};

/// kTeamShares, kEvenShares and kSharesByLength: a part is one segment. kMergesAll: with kSharesByLength a
/// share that is its whole item leaves a partial result, too.
template <bool kMergesAll>
struct ShareWalker {
  FLASHLATENT_HOST_DEVICE static bool more(const Walk& walk) { return StoredShare(walk.at).shares() > 0; }

  FLASHLATENT_HOST_DEVICE static bool done(const Walk& walk) { return StoredShare(walk.at).shares() == 0; }
  FLASHLATENT_HOST_DEVICE static void finish(Walk& walk) { finish_share(walk.at); }

  FLASHLATENT_HOST_DEVICE static Segment only(const Walk& walk) {
    const StoredShare at(walk.at);
    const std::int32_t length = tokens_of(walk.geometry, walk.length_ahead);
    const std::int32_t blocks = blocks_of(walk.geometry, length);
    return {0,
            at.request(),
            length,
            share_begin(blocks, at.shares(), at.share()),
            share_begin(blocks, at.shares(), at.share() + 1),
            partial_of(walk.geometry, at)};
  }

 private:
  FLASHLATENT_HOST_DEVICE static std::int32_t partial_of(const Geometry& g, const StoredShare& at) {
    if constexpr (kMergesAll) {
      if (g.partition == Partition::kSharesByLength) return at.partial();
    }
    return at.shares() > 1 ? at.partial() : -1;
  }
};

/// kTurns: whole items. Only the begin of a part counts.
struct TurnWalker {
  FLASHLATENT_HOST_DEVICE static bool next(Walk& walk, Segment& segment) {
    if (!LineWalker::more(walk)) return false;
    segment = LineWalker::only(walk);
    walk.at = turn_after(walk.geometry, walk.at);
    return true;
  }
};

/// The partitions that a walker may meet; it has no code for others.
enum class Walks {
  kLines,              ///< kLine, kWhole, kFixedSplits
  kLinesOrTeamShares,  ///< kLine, kWhole, kTeamShares
  kTurns,              ///< kTurns
  kAll,
};

/// Walks the segments of one part.
/// kLooksAhead: next() also loads the length and successor that the following call needs. A walker that is
/// kept in memory would wait for these loads. Lengths: a pointer to one list's lengths, or UnionLengths
/// (token_lists.h).
template <Walks kWalks, bool kLooksAhead = true, class Lengths = const std::int32_t*>
class Walker {
  using Shares = ShareWalker<kWalks == Walks::kAll>;

 public:
  FLASHLATENT_HOST_DEVICE Walker(const Geometry& geometry, const Cut& begin, const Cut& end,
                                 const std::int32_t* successors, const Lengths& lengths)
      : walk_{geometry, successors, 0, 0, begin, end}, lengths_(lengths) {
    if constexpr (kLooksAhead) look_ahead();
  }

  FLASHLATENT_HOST_DEVICE bool next(Segment& segment) {
    if constexpr (!kLooksAhead) look_ahead();
    if (turns()) {
      if (!TurnWalker::next(walk_, segment)) return false;
      if constexpr (kLooksAhead) look_ahead();
      return true;
    }
    // in line, because with a function that returns a bool a device would keep the round twice
    if (shares()) {
      if (Shares::done(walk_)) return false;
      segment = Shares::only(walk_);
      Shares::finish(walk_);
      return true;
    }
    if (!LineWalker::next(walk_, segment)) return false;
    if constexpr (kLooksAhead) look_ahead();
    return true;
  }

  /// Where the walk would continue.
  FLASHLATENT_HOST_DEVICE const Cut& at() const { return walk_.at; }

  /// The segment of a part that can have only one (kWhole, or kTeamShares with one request): what next()
  /// would give.
  FLASHLATENT_HOST_DEVICE Segment only() const {
    static_assert(kLooksAhead);
    return shares() ? Shares::only(walk_) : LineWalker::only(walk_);
  }

 private:
  FLASHLATENT_HOST_DEVICE bool shares() const {
    if constexpr (kWalks == Walks::kLines || kWalks == Walks::kTurns) {
      return false;
    } else if constexpr (kWalks == Walks::kLinesOrTeamShares) {
      const Partition partition = walk_.geometry.partition;  // teams have no fixed splits
      return partition != Partition::kLine && partition != Partition::kWhole;
    } else {
      return is_shares(walk_.geometry.partition);
    }
  }

  FLASHLATENT_HOST_DEVICE bool turns() const {
    if constexpr (kWalks == Walks::kAll) {
      return walk_.geometry.partition == Partition::kTurns;
    } else {
      return kWalks == Walks::kTurns;
    }
  }

  /// Loads the next segment's length and successor before they are needed, so that a device does not wait for
  /// them.
  FLASHLATENT_HOST_DEVICE void look_ahead() {
    Walk& walk = walk_;
    const bool more = shares() ? Shares::more(walk) : LineWalker::more(walk);
    walk.length_ahead = more ? length_of(walk.geometry, lengths_, walk.at.request) : 0;
    if (turns()) return;
    if (walk.successors == nullptr) {
      walk.successor_ahead = walk.at.request + 1 < walk.geometry.requests ? walk.at.request + 1 : ~0;
    } else if (more && !same_item(walk.at, walk.end)) {
      walk.successor_ahead = walk.successors[walk.at.request];
    }
  }

  Walk walk_;
  Lengths lengths_;
};
using PartWalker = Walker<Walks::kAll>;

/// May the part from `begin` to `end` be exactly one whole item? It is one if item_after() is `end`; then the
/// part needs no walk.
FLASHLATENT_HOST_DEVICE bool may_be_one_item(const Geometry& g, const Cut& begin, const Cut& end) {
  return g.fixed_split == 0 && begin.round < g.rounds && begin.block == 0 && end.block == 0;
}

/// The begin of the item after the cut's item, in the plan's order.
FLASHLATENT_HOST_DEVICE Cut item_after(const Geometry& g, const Cut& cut, const std::int32_t* successors) {
  if (successors == nullptr) return next_item(g, cut);
  const std::int32_t request = successors[cut.request];
  return request < 0 ? Cut{cut.round + 1, ~request, 0, 0} : Cut{cut.round, request, 0, 0};
}

}  // namespace flashlatent::schedule
