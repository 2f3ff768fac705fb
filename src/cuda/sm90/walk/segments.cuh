// A CTA's work of a plan: one row tile of each segment of a part, and with teams some of the segment's
// blocks. CTAs are numbered by part, then lane, then rank in the team.
#pragma once

#include "cuda/sm90/walk/leaves.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"
#include "cuda/sm90/walk/row_tile.cuh"
#include "plan/team_shares.h"
#include "plan/walker.h"
#include "plan/whole.h"

namespace flashlatent::sm90 {

/// Waits for the previous launch. Set-up, and what follows from shapes, come before this call, while that
/// launch ends; nothing is read from memory before.
__device__ __forceinline__ void wait_for_launch_before() {
  cudaGridDependencySynchronize();            // it may still write what this launch reads
  cudaTriggerProgrammaticLaunchCompletion();  // lets the combine step take its place in the queue
}

/// One of the teams that share a request.
struct SharingTeam {
  int request;
  int lane;   // which of the part's row tiles
  int first;  // the part of the first team
  int share, shares;
};

/// The number of teams that share the request of a part.
__device__ __forceinline__ int shares_of(const schedule::Geometry& g, const schedule::Cut& part) {
  return g.partition == schedule::Partition::kTeamShares ? schedule::StoredShare(part).shares() : 1;
}

/// Where this CTA's part begins and ends, as far as shapes say; nothing is read from memory. kTurns: the
/// partition is schedule::Partition::kTurns.
template <int kTeam = 1, bool kTurns = false>
class PartPlace {
 public:
  __device__ __forceinline__ explicit PartPlace(const DecodeArguments& args)
      : PartPlace(args.geometry, args.lanes.quotient(blockIdx.x / kTeam),
                  args.lanes.remainder(blockIdx.x / kTeam)) {}
  /// For CTAs that are numbered in another way: of part `part`, with lane `lane` or several lanes from `lane`
  /// on.
  __device__ __forceinline__ PartPlace(const schedule::Geometry& g, int part, int lane)
      : part_(part), lane_(lane) {
    if (kTurns || is_whole(g)) begin_ = schedule::whole_cut(g, part_);
    if (shares_one_request(g)) begin_ = schedule::stored(schedule::lone_team_cut(g, part_));
  }

  /// Are begin() and end() valid before the plan has been read?
  __device__ __forceinline__ static bool by_shape(const schedule::Geometry& g) {
    return kTurns || is_whole(g) || shares_one_request(g);
  }
  /// The row tile of the only segment of a part by shape; must not be ragged.
  __device__ __forceinline__ RowTile only_tile(const DecodeArguments& args) const {
    return row_tile(args, begin_.request, is_whole(args.geometry) ? begin_.round : 0, lane_);
  }
  /// begin() of a part by shape; otherwise meaningless.
  __device__ __forceinline__ const schedule::Cut& begin_by_shape() const { return begin_; }
  /// For a team's part by shape; see Segments.
  __device__ __forceinline__ int shares(const schedule::Geometry& g) const { return shares_of(g, begin_); }
  __device__ __forceinline__ int share() const { return schedule::StoredShare(begin_).share(); }
  /// The CTA's row tile among the part's lanes, or its first one.
  __device__ __forceinline__ int lane() const { return lane_; }
  __device__ __forceinline__ schedule::Cut begin(const DecodeArguments& args) const {
    return by_shape(args.geometry) ? begin_ : args.cuts[part_];
  }
  __device__ __forceinline__ schedule::Cut end(const DecodeArguments& args) const {
    return by_shape(args.geometry) ? schedule::next_item(args.geometry, begin_) : args.cuts[part_ + 1];
  }

 private:
  __device__ __forceinline__ static bool is_whole(const schedule::Geometry& g) {
    return !kTurns && g.partition == schedule::Partition::kWhole;
  }
  __device__ __forceinline__ static bool shares_one_request(const schedule::Geometry& g) {
    return kTeam > 1 && g.partition == schedule::Partition::kTeamShares && g.requests == 1;
  }
  int part_, lane_;
  schedule::Cut begin_;
};

/// The segments of this CTA's part, one after another; in a team of kTeam CTAs, the CTA's share of each.
/// kLooksAhead: see Walker. kLists: tokens are of two lists (listed_tokens.cuh). kTurns: see PartPlace.
template <int kTeam = 1, bool kLooksAhead = true, bool kLists = false, bool kTurns = false>
class Segments {
  static constexpr bool kTokens = kLists && !kTurns;  // see row_tile()
  using Lengths = std::conditional_t<kLists, schedule::UnionLengths, const std::int32_t*>;

 public:
  __device__ __forceinline__ explicit Segments(const DecodeArguments& args)
      : Segments(args, PartPlace<kTeam, kTurns>(args)) {}
  __device__ __forceinline__ Segments(const DecodeArguments& args, const PartPlace<kTeam, kTurns>& place)
      : Segments(args, place.lane(), place.begin(args), place.end(args)) {}
  /// only() does not need `end`.
  __device__ __forceinline__ Segments(const DecodeArguments& args, int lane, const schedule::Cut& begin,
                                      const schedule::Cut& end)
      : Segments(args, lane, begin, end, item_lengths<kLists>(args.cache), args.successors) {}
  /// `lengths` and `successors`: the call's, or copies of them.
  __device__ __forceinline__ Segments(const DecodeArguments& args, int lane, const schedule::Cut& begin,
                                      const schedule::Cut& end, const Lengths& lengths,
                                      const std::int32_t* successors)
      : args_(args), lane_(lane), begin_(begin), walker_(args.geometry, begin_, end, successors, lengths) {}

  __device__ __forceinline__ bool next(schedule::Segment& segment) {
    if constexpr (kTokens) {
      // Skips segments without query rows: a short ragged request may lack most query tokens.
      do {
        if (!walker_.next(segment)) return false;
      } while (args_.query.begins != nullptr && tile_of(segment).rows == 0);
    } else {
      if (!walker_.next(segment)) return false;
      skip_without_rows(segment);
    }
    take_share(segment);
    return true;
  }

  /// The segment of a part that has only one; takes fewer steps than next().
  __device__ __forceinline__ schedule::Segment only() const {
    schedule::Segment segment = walker_.only();
    skip_without_rows(segment);
    take_share(segment);
    return segment;
  }

  /// Where the walk would continue.
  __device__ __forceinline__ const schedule::Cut& at() const { return walker_.at(); }

  __device__ __forceinline__ RowTile tile_of(const schedule::Segment& segment) const {
    return row_tile<kTokens>(args_, segment.request, segment.round, lane());
  }

  /// The CTA's row tile among the part's lanes.
  __device__ __forceinline__ int lane() const { return lane_; }

  /// The number of parts that share the request of a team's segment; this part is number `share`.
  __device__ __forceinline__ int shares() const { return shares_of(args_.geometry, begin_); }
  __device__ __forceinline__ int share() const { return schedule::StoredShare(begin_).share(); }
  __device__ __forceinline__ SharingTeam sharing(const schedule::Segment& segment) const {
    return {segment.request, lane_, segment.partial - share(), share(), shares()};
  }

 private:
  /// A tile without rows (of a ragged request) gets no blocks either, so that nothing is loaded for it.
  __device__ __forceinline__ void skip_without_rows(schedule::Segment& segment) const {
    if (args_.query.begins != nullptr && tile_of(segment).rows == 0) segment.block_end = segment.block_begin;
  }
  __device__ __forceinline__ void take_share(schedule::Segment& segment) const {
    if constexpr (kTeam > 1) {
      const int blocks = segment.block_end - segment.block_begin, rank = blockIdx.x % kTeam;
      segment.block_end = segment.block_begin + schedule::share_begin(blocks, kTeam, rank + 1);
      segment.block_begin += schedule::share_begin(blocks, kTeam, rank);
    }
  }

  const DecodeArguments& args_;
  const int lane_;
  const schedule::Cut begin_;
  static constexpr schedule::Walks kWalks = kTurns      ? schedule::Walks::kTurns
                                            : kTeam > 1 ? schedule::Walks::kLinesOrTeamShares
                                                        : schedule::Walks::kLines;
  schedule::Walker<kWalks, kLooksAhead, Lengths> walker_;
};

}  // namespace flashlatent::sm90
