// Merges the results of several teams that share a request (schedule::Partition::kTeamShares), without a
// launch. In each team the owner of a unit writes the team's sums of it to the workspace, tagged
// (tagged.cuh). Then each owner adds up one slice of the unit, over all teams in order; it loads until
// everything has arrived. That is one trip to memory; a fence, a ticket and a merge of the whole unit by the
// last team took three times as long.
//
// A waiting CTA must not keep another CTA from beginning: two such calls on two streams could wait for each
// other for ever. So after kPatience tries it declines, and the last team to arrive merges its slice, too.
#pragma once

#include "cuda/sm90/merge/tagged.cuh"
#include "cuda/sm90/merge/team.cuh"
#include "cuda/sm90/walk/segments.cuh"
#include "cuda/sm90/walk/team_room.h"

namespace flashlatent::sm90 {

/// One team's part of one unit, in the workspace. The parts of the teams that share a request lie side by
/// side.
template <class Config>
struct UnitPartial {
  TaggedFour<typename Config::Element> values[128];  // see Exchange: a thread's four values
  ptx::Word128 rows[Config::kRows];                  // maximum in base 2, sum
};

/// The state of a unit's merges, in the workspace behind all partial results.
///
/// A merge's number must never come twice, or an earlier merge's values would be taken for this one's. If
/// `counts` do not fit `number`, the workspace was used for something else. Then the number begins at the
/// present time in nanoseconds, which is above all earlier ones: no call takes as little as a nanosecond.
struct UnitMerges {
  // of the present merge: owners that have arrived, and slices that are left to the last owner
  Ticket counts;
  std::uint64_t number;  // of the present merge; grows by one with each

  static constexpr int kArrivalBits = 8;
  static constexpr Ticket kCounts = (1ULL << 2 * kArrivalBits) - 1;

  /// The state before any owner has arrived.
  __host__ __device__ __forceinline__ static UnitMerges begun(std::uint64_t number) {
    return {(number ^ 0x7E4A5C0D1F3B9A26ULL) * 0x9E3779B97F4A7C15ULL & ~kCounts, number};
  }
  __host__ __device__ __forceinline__ bool is_begun() const {
    return (counts & ~kCounts) == begun(number).counts;
  }
};
static_assert(sizeof(UnitMerges) == kUnitMergesBytes);

/// Merges one unit by 128 threads.
template <class Config>
class TeamMerge {
  using Element = typename Config::Element;
  using Four = TaggedFour<Element>;

 public:
  /// Call some time before run(), so that loads and addresses are then ready.
  __device__ __forceinline__ TeamMerge(const DecodeArguments& args, const SharingTeam& team, UnitPlace place)
      : share_(team.share), shares_(team.shares), unit_(place.unit), begins_row_(place.begins_row()) {
    const int lanes = args.geometry.lanes;
    auto* partials = reinterpret_cast<UnitPartial<Config>*>(args.partial.out);
    partials_ = partials + (team.first * lanes + team.lane * shares_) * Config::kUnits + unit_ * shares_;
    merges_ = reinterpret_cast<UnitMerges*>(partials + args.geometry.parts * lanes * Config::kUnits) +
              (team.request * lanes + team.lane) * Config::kUnits + unit_;
    const ptx::Word128 state = ptx::load_at_gpu(reinterpret_cast<const ptx::Word128*>(merges_));
    to_values_ = partials_[share_].values[threadIdx.x % 128].words;
    to_row_ = &partials_[share_].rows[place.n];
    find(share_);
    hold(to_values_);
    hold(to_row_);
    hold(values_at_);
    hold(row_at_);
    state_ = {state.low, state.high};
  }

  /// The thread whose four values this thread writes: itself, or a thread of this CTA's slice.
  __device__ __forceinline__ static int written(int share, int shares) {
    return shares > 1 && share < slices(shares) ? four_of(share, shares)
                                                : static_cast<int>(threadIdx.x % 128);
  }

  /// `x` and `row`: the thread's four values of this team, and their row. `write(own, four, x, row)` gets the
  /// sum over all teams, unnormalised, for four values of the unit; `own`: the four of written().
  template <class Write>
  __device__ __forceinline__ void run(const float (&x)[4], RowStatistics row, Unmerged& unmerged,
                                      Write write) {
    const int thread = threadIdx.x % 128;
    if (!state_.is_begun()) [[unlikely]]
      begin_numbers();
    const Tag tag = tag_of_merge();
    store(x, row, tag);
    float all[4];
    RowStatistics all_row;
    const bool there = !has_slice() || read(tag, true, all, all_row);
    if (!there) unmerged.declined = 1U << share_;
    ptx::arrive(unmerged.stored);
    Ticket before = 0;
    if (thread >= 96) {
      ptx::wait(unmerged.stored, 0);
      if (thread == 127) before = arrive(unmerged.declined);
    }
    if (has_slice() && there && writes(shares_)) write(true, four_of(share_, shares_), all, all_row);
    if (thread == 127) {
      unmerged.left = leave(before, unmerged.declined);
      ptx::arrive(unmerged.settled);
    }
    ptx::wait(unmerged.settled, 0);
    for (std::uint32_t left = unmerged.left; left != 0; left &= left - 1) [[unlikely]] {
        const int slice = __ffs(left) - 1;
        find(slice);
        read(tag, false, all, all_row);
        if (writes(shares_)) write(false, four_of(slice, shares_), all, all_row);
      }
  }

 private:
  static_assert(kMostTeamCtas / Config::kTeam < 1 << UnitMerges::kArrivalBits);

  /// The numbers of slices, and of groups of teams among which lanes are divided (at least 8, 4 or 2 teams),
  /// as logarithms.
  __device__ __forceinline__ static int slices_log2(int shares) {
    return shares >= 8 ? 3 : shares >= 4 ? 2 : 1;
  }
  __device__ __forceinline__ static int slices(int shares) { return 1 << slices_log2(shares); }
  /// Fours of a slice for a warp.
  __device__ __forceinline__ static int fours_log2(int shares) { return 5 - slices_log2(shares); }
  __device__ __forceinline__ static int four_of(int slice, int shares) {
    const int warp = threadIdx.x % 128 / 32, fours = fours_log2(shares);
    return ((slice << 2 | warp) << fours) + static_cast<int>(threadIdx.x % (1 << fours));
  }
  __device__ __forceinline__ static int group_of(int shares) {
    return static_cast<int>(threadIdx.x % 32 >> fours_log2(shares));
  }
  /// The lane of the first group writes.
  __device__ __forceinline__ static bool writes(int shares) { return group_of(shares) == 0; }

  __device__ __forceinline__ bool has_slice() const { return share_ < slices(shares_); }
  /// Finds a slice's fours, from the first of this thread's teams on.
  __device__ __forceinline__ void find(int slice) {
    const int four = four_of(slice, shares_);
    const UnitPartial<Config>& partial = partials_[group_of(shares_)];
    values_at_ = partial.values[four].words;
    row_at_ = &partial.rows[Config::unit_row(unit_, four)];
  }
  /// Forces the value to be computed here, and not where it is used.
  template <class T>
  __device__ __forceinline__ static void hold(T*& place) {
    asm volatile("" : "+l"(place));
  }

  /// The first to arrive sets the number.
  __device__ __forceinline__ void begin_numbers() {
    const UnitMerges first = UnitMerges::begun(ptx::global_time());
    const ptx::Word128 found{state_.counts, state_.number};
    const ptx::Word128 before = ptx::compare_and_swap_at_gpu(reinterpret_cast<ptx::Word128*>(merges_), found,
                                                             {first.counts, first.number});
    const bool is_first = before.low == found.low && before.high == found.high;
    state_.number = is_first ? first.number : before.high;
  }

  /// The tag of this merge. Other units' words, which calls of other shapes may have left in the workspace,
  /// have other tags.
  __device__ __forceinline__ Tag tag_of_merge() const {
    return state_.number + reinterpret_cast<std::uintptr_t>(merges_) * 0x9E3779B97F4A7C15ULL & kTagMask;
  }

  __device__ __forceinline__ void store(const float (&x)[4], RowStatistics row, Tag tag) const {
    const Four four = Four::of(x, tag);
#pragma unroll
    for (int i = 0; i < Four::kWords; ++i) ptx::store_at_gpu(to_values_ + i, four.words[i]);
    if (begins_row_) ptx::store_at_gpu(to_row_, tagged(row.max, row.sum, tag));
  }

  /// Called by one thread after all threads have stored.
  __device__ __forceinline__ Ticket arrive(std::uint32_t declined) const {
    return atomicAdd(&merges_->counts, 1ULL + (Ticket{declined} << UnitMerges::kArrivalBits));
  }
  /// Returns the slices that are left to this CTA. The last CTA prepares the state for the next merge.
  __device__ __forceinline__ std::uint32_t leave(Ticket before, std::uint32_t declined) const {
    const auto counts = static_cast<std::uint32_t>(before & UnitMerges::kCounts);
    if (static_cast<int>(counts % (1 << UnitMerges::kArrivalBits)) != shares_ - 1) return 0;
    *merges_ = UnitMerges::begun(state_.number + 1);
    return counts >> UnitMerges::kArrivalBits | declined;
  }

  /// The sum over all teams of four values of the slice, unnormalised, and their row; each group of lanes
  /// adds some of the teams. False if they have not arrived in time. Called by all lanes of a warp.
  __device__ __forceinline__ bool read(Tag tag, bool may_decline, float (&x)[4], RowStatistics& row) const {
    const int groups = slices(shares_), fours = fours_log2(shares_);
    const ptx::Word128 *values_at = values_at_, *row_at = row_at_;
    constexpr int kStep = sizeof(UnitPartial<Config>) / sizeof(ptx::Word128);
    x[0] = x[1] = x[2] = x[3] = 0;
    row = {-INFINITY, 0};
    for (int begin = 0; begin < shares_; begin += kAtOnce * groups) {
      const int mine = begin + group_of(shares_);
      ptx::Word128 rows[kAtOnce];
      Four values[kAtOnce];
      bool missing[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) missing[i] = mine + i * groups < shares_;
      for (int tries = 1;; ++tries) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (!missing[i]) continue;
          rows[i] = ptx::load_at_gpu(row_at + i * groups * kStep);
#pragma unroll
          for (int k = 0; k < Four::kWords; ++k) {
            values[i].words[k] = ptx::load_at_gpu(values_at + i * groups * kStep + k);
          }
        }
        bool any = false;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          missing[i] = missing[i] && !(has_tag(rows[i], tag) && values[i].has(tag));
          any = any || missing[i];
        }
        if (!__any_sync(0xffffffff, any)) break;
        ptx::check_tries(tries, "teams that share unit", unit_, tries);
        if (may_decline && tries == kPatience) return false;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (mine + i * groups >= shares_) continue;
        const float2 of = floats_of(rows[i]);
        const float max = fmaxf(row.max, of.x), base = finite_or_zero(max);
        const float shrinks = exp2_fast(row.max - base), weight = exp2_fast(of.x - base);
        const float4 theirs = values[i].values();
        row = {max, fmaf(row.sum, shrinks, of.y * weight)};
#pragma unroll
        for (int k = 0; k < 4; ++k) x[k] *= shrinks;
        add_weighted(x, theirs, weight);
      }
      row_at += kAtOnce * groups * kStep;
      values_at += kAtOnce * groups * kStep;
    }
    float max = row.max;
#pragma unroll
    for (int step = 16; step >= 4; step /= 2) {
      if (step >> fours != 0) max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, step));
    }
    const float weight = exp2_fast(row.max - finite_or_zero(max));
    row = {max, row.sum * weight};
#pragma unroll
    for (float& value : x) value *= weight;
#pragma unroll
    for (int step = 16; step >= 4; step /= 2) {
      if (step >> fours == 0) continue;
      row.sum += __shfl_xor_sync(0xffffffff, row.sum, step);
#pragma unroll
      for (float& value : x) value += __shfl_xor_sync(0xffffffff, value, step);
    }
    return true;
  }

  static constexpr int kAtOnce = 2;     // teams of a thread's share in one trip to memory: mostly all
  static constexpr int kPatience = 64;  // tries, of some 600 clocks each

  // The host sizes the workspace by this (host/team_call.cc).
  static_assert(Config::kUnits <= kMostUnits);
  static_assert(Config::kUnits * sizeof(UnitPartial<Config>) <=
                Config::kRows * (Config::kVDim * 8 + Config::kUnits * sizeof(ptx::Word128)));

  const int share_, shares_, unit_;
  const bool begins_row_;
  UnitPartial<Config>* partials_;
  UnitMerges* merges_;
  ptx::Word128 *to_values_, *to_row_;        // where this thread's values go
  const ptx::Word128 *values_at_, *row_at_;  // of a slice
  UnitMerges state_;                         // as it was found
};

}  // namespace flashlatent::sm90
