// The combine step by the CTAs that decode, in place of a launch of its own. It suits batches with about as
// many requests as parts, or more, if few requests are split: most calls of 128 requests take 1 to 6 us less.
// A CTA that has written its results announces that and waits for all others; then the CTAs divide the
// merges.
//
// A waiting CTA must not keep another CTA from beginning. So it waits only if all CTAs have begun; then all
// CTAs for which it waits are running. Otherwise it leaves, and the CTAs that stay do its merges. At least
// the CTA that began last stays.
#pragma once

#include "cuda/sm90/merge/merge_units.cuh"
#include "cuda/sm90/merge/ticket.cuh"

namespace flashlatent::sm90 {

/// At the begin of the workspace, at the same place for all calls. A call leaves it as found, with all counts
/// 0.
struct MergeState {
  alignas(128) Ticket begun;  // CTAs that have begun, and CTAs that no longer need this state
  alignas(128) Ticket done;   // CTAs that have written their results, and how many of these do not merge
};
static_assert(sizeof(MergeState) == kMergeStateBytes);

/// In shared memory, from the begin of the kernel on.
struct MergeBegun {
  int merges;  // of the plan
  ptx::Barrier meeting;
};

/// kThreads: the computing threads, from thread 0 on. One of their warps calls begin(); later all call run().
/// They synchronise at an mbarrier in shared memory, because racecheck loses track of named barriers.
/// kRowParts: parts in flight for a row that one warp merges; kCtaParts: for a row of many parts that all
/// warps share. Both cost registers. kTokens: see row_tile().
template <class Element, int kThreads, int kRows, int kVDim, int kRowParts = 4, int kCtaParts = 9,
          bool kTokens = false>
class MergeStep {
  using Stored = StoredPartial<Element, kRows>;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kAllUnits = kVDim / kUnitColumns<Stored>;
  // Units of columns that a warp merges at once, of a row that all warps share.
  static constexpr int kCtaUnits = 256 / kUnitColumns<Stored>;
  // Units of a row, and of a tile:
  static constexpr int kColumnUnits = kAllUnits / kCtaUnits;
  static constexpr int kCtaUnitsATile = kRows * kColumnUnits, kRowUnitsATile = kRows / kWarps;
  static_assert(kAllUnits % kCtaUnits == 0 && kRows % kWarps == 0);

 public:
  /// Called by one thread while the CTA is set up.
  __device__ __forceinline__ static void init(MergeBegun& begun) { ptx::init(begun.meeting, kThreads); }

  /// Call after the previous launch is done and before anything is computed.
  __device__ __forceinline__ static void begin(const DecodeArguments& args, MergeBegun& begun) {
    if (threadIdx.x % 32 == 0) {
      begun.merges = args.plan_header->merges;
      if (begun.merges > 0) {
        Pair::prepare(&args.merge_state->done);
        Pair::add(&args.merge_state->begun, kUpper);
      }
    }
    __syncwarp();
  }

  /// `room`: shared memory that is no longer used.
  template <class Room>
  __device__ __forceinline__ MergeStep(const DecodeArguments& args, MergeBegun& begun, Room& room)
      : args_(args), begun_(begun), memory_(reinterpret_cast<Memory&>(room)) {
    static_assert(sizeof(Memory) <= sizeof(Room));
  }

  /// Call after all segments.
  __device__ __forceinline__ void run() {
    meet();  // all results are written, and this CTA is counted as begun
    const int merges_in_all = begun_.merges;
    if (merges_in_all == 0) return;
    if (threadIdx.x == 0) memory_.rank = say_done();
    memory_.long_merges.find(args_, [this] { meet(); });
    const schedule::Geometry& g = args_.geometry;
    const bool listed = memory_.long_merges.listed();
    const int cta_units = listed ? memory_.long_merges.count * g.lanes * kCtaUnitsATile : 0;
    const int warp_units = merges_in_all * g.lanes * kRowUnitsATile;
    schedule::Merge merge = {};  // of the next unit, looked up ahead
    auto look_up = [&](int unit) {
      if (unit >= cta_units + warp_units) return;
      merge = args_.merges[unit < cta_units
                               ? memory_.long_merges.merges[args_.lanes.quotient(unit / kCtaUnitsATile)]
                               : args_.lanes.quotient((unit - cta_units) / kRowUnitsATile)];
    };
    int index = memory_.rank;
    const bool merges = index >= 0 && index < cta_units + warp_units;
    Ticket left = 0;
    if (merges) look_up(index);
    if (threadIdx.x == 0) {
      if (merges) memory_.sharers = wait_for_all();
      left = atomicAdd(&args_.merge_state->begun, 1);
    }
    if (merges) {
      meet();
      for (const int step = memory_.sharers; index < cta_units + warp_units; index += step) {
        const schedule::Merge here = merge;
        look_up(index + step);
        if (index < cta_units) {
          merge_long(index, here);
        } else if (!listed || !LongMerges<kWarps>::is_long(g, here)) {
          merge_rows(index - cta_units, here);
        }
      }
    }
    // The last CTA restores the state.
    if (threadIdx.x == 0 && lower(left) == static_cast<int>(gridDim.x) - 1) {
      args_.merge_state->done = Pair::kNone;
      args_.merge_state->begun = Pair::kNone;
    }
  }

 private:
  struct Memory {
    WarpMerges<kWarps, kCtaUnits, Stored> warp_merges;
    LongMerges<kWarps> long_merges;
    int rank;     // among the CTAs that merge; -1: this CTA does not
    int sharers;  // the number of CTAs that merge
  };

  // Two counts in a word.
  static constexpr int kCountBits = 12;
  static constexpr Ticket kUpper = 1ULL << kCountBits;
  static_assert(kMostMergingCtas < kUpper);
  using Pair = Counts<2 * kCountBits>;
  __device__ __forceinline__ static int upper(Ticket counts) {
    return static_cast<int>(counts >> kCountBits & (kUpper - 1));
  }
  __device__ __forceinline__ static int lower(Ticket counts) {
    return static_cast<int>(counts & (kUpper - 1));
  }

  __device__ __forceinline__ void meet() {
    ptx::arrive(begun_.meeting);
    ptx::wait(begun_.meeting, parity_);
    parity_ ^= 1;
  }

  /// Announces this CTA's results. Returns its rank among the CTAs that merge if all have begun; else -1.
  __device__ __forceinline__ int say_done() const {
    MergeState& state = *args_.merge_state;
    const Ticket begun = ptx::load_relaxed_at_gpu(&state.begun);  // arrives while the fence waits
    __threadfence();
    const bool stays = upper(begun) == static_cast<int>(gridDim.x);
    const Ticket before = atomicAdd(&state.done, kUpper + (stays ? 0 : 1));
    return stays ? upper(before) - lower(before) : -1;
  }

  /// Returns the number of CTAs that merge.
  __device__ __forceinline__ int wait_for_all() const {
    const Ticket* done = &args_.merge_state->done;
    Ticket counts = ptx::load_acquire_at_gpu(done);
    for (std::uint32_t tries = 0; upper(counts) != static_cast<int>(gridDim.x); ++tries) {
      ptx::check_tries(tries, "results of blocks,", gridDim.x, upper(counts));
      counts = ptx::load_acquire_at_gpu(done);
    }
    return static_cast<int>(gridDim.x) - lower(counts);
  }

  /// Merges some columns of one row of many parts, which all warps share.
  __device__ __forceinline__ void merge_long(int index, const schedule::Merge& merge) {
    const int column = index % kColumnUnits * kCtaUnits * kUnitColumns<Stored>;
    const int row = index / kColumnUnits % kRows;
    const int lane = args_.lanes.remainder(index / kCtaUnitsATile);
    const RowTile tile = row_tile<kTokens>(args_, merge.request, merge.round, lane);
    if (row >= tile.rows) return;
    merge_by_sharers<kWarps, kCtaParts>(
        MergedRow<Element, Stored>::find(args_, merge, tile, lane, row, kVDim), column, kVDim,
        memory_.warp_merges, [this] { meet(); });
  }

  /// Merges one row for each warp.
  __device__ __forceinline__ void merge_rows(int index, const schedule::Merge& merge) {
    const int row = index % kRowUnitsATile * kWarps + static_cast<int>(threadIdx.x) / 32;
    const int lane = args_.lanes.remainder(index / kRowUnitsATile);
    const RowTile tile = row_tile<kTokens>(args_, merge.request, merge.round, lane);
    if (row >= tile.rows) return;
    merge_by_warp<kAllUnits, kRowParts>(
        MergedRow<Element, Stored>::find(args_, merge, tile, lane, row, kVDim), 0, kVDim);
  }

  const DecodeArguments& args_;
  MergeBegun& begun_;
  Memory& memory_;
  std::uint32_t parity_ = 0;
};

}  // namespace flashlatent::sm90
