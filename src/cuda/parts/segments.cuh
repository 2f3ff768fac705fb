// A CTA's share of the plan: a part's segments, of each one row tile, and with teams some of its blocks. CTAs
// are numbered part by part, lane by lane, rank by rank in the team.
#pragma once

#include "cuda/parts/arguments.cuh"

namespace flashlatent::parts {

/// Where this CTA's share begins and ends, as far as shapes tell: nothing is read from memory.
template <int kTeam = 1>
class PartPlace {
 public:
  __device__ __forceinline__ explicit PartPlace(const schedule::Geometry& g)
      : PartPlace(g, blockIdx.x / kTeam / g.lanes, blockIdx.x / kTeam % g.lanes) {}
  /// CTAs that are numbered otherwise: one of part `part`, with lane `lane` or several lanes from there on.
  __device__ __forceinline__ PartPlace(const schedule::Geometry& g, int part, int lane)
      : part_(part), lane_(lane) {
    if (g.whole != 0) {
      begin_ = schedule::item_cut(g, part_);
      end_ = schedule::next_item(g, begin_);
    }
  }

  /// Which of the part's row tiles of each segment, the first of them.
  __device__ __forceinline__ int lane() const { return lane_; }
  __device__ __forceinline__ schedule::Cut begin(const DecodeArguments& args) const {
    return args.geometry.whole != 0 ? begin_ : args.cuts[part_];
  }
  __device__ __forceinline__ schedule::Cut end(const DecodeArguments& args) const {
    return args.geometry.whole != 0 ? end_ : args.cuts[part_ + 1];
  }

 private:
  int part_, lane_;
  schedule::Cut begin_, end_;
};

/// The segments of this CTA's part, one after another; with teams, of kTeam CTAs, the share of each.
template <int kTeam = 1>
class Segments {
 public:
  __device__ __forceinline__ explicit Segments(const DecodeArguments& args)
      : Segments(args, PartPlace<kTeam>(args.geometry)) {}
  __device__ __forceinline__ Segments(const DecodeArguments& args, const PartPlace<kTeam>& place)
      : args_(args),
        lane_(place.lane()),
        walker_(args.geometry, place.begin(args), place.end(args), args.cache.lengths) {}

  /// A tile without rows (of a ragged request) has no blocks either: nothing is loaded for it.
  __device__ __forceinline__ bool next(schedule::Segment& segment) {
    if (!walker_.next(segment)) return false;
    if (args_.query.begins != nullptr && tile_of(segment).rows == 0) segment.block_end = segment.block_begin;
    team_blocks_ = segment.block_end - segment.block_begin;
    if constexpr (kTeam > 1) {
      const int rank = blockIdx.x % kTeam;
      segment.block_end = segment.block_begin + schedule::share_begin(team_blocks_, kTeam, rank + 1);
      segment.block_begin += schedule::share_begin(team_blocks_, kTeam, rank);
    }
    return true;
  }

  /// Blocks of the segment that next() gave, all CTAs' shares together.
  __device__ __forceinline__ int team_blocks() const { return team_blocks_; }

  __device__ __forceinline__ RowTile tile_of(const schedule::Segment& segment) const {
    return row_tile(args_, segment.request, segment.round, lane());
  }

  /// Which of the part's row tiles this is.
  __device__ __forceinline__ int lane() const { return lane_; }

 private:
  const DecodeArguments& args_;
  const int lane_;
  schedule::PartWalker walker_;
  int team_blocks_ = 0;
};

}  // namespace flashlatent::parts
