// The `wanted` best places of a query token in order: those above the threshold, and of those equal to it the
// first. Each warp has a run of places, so that places before it are counted, not ordered.
#pragma once

#include "cuda/sm90/kernels/index_topk/digits.cuh"

namespace flashlatent::cuda::indexer {

/// Chosen places of this CTA, in SelectShared::chosen: number `begin` to begin + count - 1 of the query
/// token's `total`.
struct Chosen {
  int begin, count, total;
};

/// The sum over lanes up to this one.
__device__ __forceinline__ int sum_to_lane(int mine) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFF, mine, step);
    if (lane >= step) mine += other;
  }
  return mine;
}

/// Which of eight neighbours are better than the threshold and equal to it, a bit each.
struct Marks {
  unsigned better = 0, ties = 0;
};
template <class Keys>
__device__ __forceinline__ Marks marks_of(const SelectShared& shared, const RangeKeys<Keys>& keys, int first,
                                          std::uint32_t threshold) {
  const Eight eight = keys.eight(shared, first);
  const std::uint32_t half = threshold >> 16, most = threshold | 0xFFFF;
  Marks marks;
#pragma unroll
  for (int k = 0; k < kEachOfLane / 2; ++k) {
    if (eight.words[k] << 16 > most) marks.better |= 1U << 2 * k;
    if (eight.words[k] > most) marks.better |= 2U << 2 * k;
  }
  for_equal_halves(eight, first, half, [&](int i) {
    const std::uint32_t key = keys.key(i);
    if (key > threshold) marks.better |= 1U << (i - first);
    if (key == threshold) marks.ties |= 1U << (i - first);
  });
  return marks;
}

/// The `count` lowest bits that are set.
__device__ __forceinline__ unsigned lowest_bits(unsigned bits, int count) {
  unsigned lowest = 0;
  for (; count > 0; --count) {
    lowest |= bits & -bits;
    bits &= bits - 1;
  }
  return lowest;
}

/// The kept threshold's `left` ties are shared out in order: how many fall to a run that has `mine`, with
/// `before` before it.
FLASHLATENT_HOST_DEVICE int ties_taken(int left, int before, int mine) {
  const int rest = left - before;
  return rest <= 0 ? 0 : rest < mine ? rest : mine;
}

/// Counts of this CTA's warps, then of the cluster's CTAs: what lies before this warp.
template <bool kTeam>
struct Before {
  Counts of_cta = {0, 0}, of_warp = {0, 0};  ///< Before this CTA; before this warp.
  Counts mine = {0, 0}, all = {0, 0};        ///< This CTA's; the query token's.

  __device__ __forceinline__ Before(SelectShared& shared, const SelectTeam<kTeam>& team, int better,
                                    int ties) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    better = static_cast<int>(__reduce_add_sync(0xFFFFFFFF, better));
    ties = static_cast<int>(__reduce_add_sync(0xFFFFFFFF, ties));
    if (lane == 0) {
      shared.better[warp] = better;
      shared.ties[warp] = ties;
    }
    __syncthreads();
    const int warp_better = lane < kSelectWarps ? shared.better[lane] : 0;
    const int warp_ties = lane < kSelectWarps ? shared.ties[lane] : 0;
    mine = {static_cast<int>(__reduce_add_sync(0xFFFFFFFF, warp_better)),
            static_cast<int>(__reduce_add_sync(0xFFFFFFFF, warp_ties))};
    of_warp = {static_cast<int>(__reduce_add_sync(0xFFFFFFFF, lane < warp ? warp_better : 0)),
               static_cast<int>(__reduce_add_sync(0xFFFFFFFF, lane < warp ? warp_ties : 0))};
    all = mine;
    if constexpr (kTeam) {
      if (threadIdx.x < team.ctas) {
        const std::uint32_t to = ptx::address_in(threadIdx.x, &shared.counts[team.rank]);
        ptx::store_at(to, make_uint2(mine.better, mine.ties));
      }
      ptx::cluster_sync();
      all = {0, 0};
      for (int cta = 0; cta < team.ctas; ++cta) {
        const Counts counts = shared.counts[cta];
        if (cta < team.rank) of_cta = {of_cta.better + counts.better, of_cta.ties + counts.ties};
        all = {all.better + counts.better, all.ties + counts.ties};
      }
    }
    of_warp = {of_warp.better + of_cta.better, of_warp.ties + of_cta.ties};
  }
};

/// All threads of all CTAs of the cluster call it, with cleared columns. Leaves SelectShared::chosen, which
/// lies where the columns were, to be read behind a barrier of the CTA, which the caller has to provide.
template <bool kTeam, class Keys>
__device__ __forceinline__ Chosen choose(SelectShared& shared, const SelectTeam<kTeam>& team,
                                         const Keys& of_places, int places, int wanted, bool waits) {
  const SelectRange range = select_range(places, team.rank, team.ctas);
  const RangeKeys<Keys> keys{of_places, range};
  const Threshold threshold = find_threshold<kTeam>(shared, team, keys, wanted, waits);
  const int left = threshold.key == 0 ? 0 : wanted - threshold.above;

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int units = range.units(), each = (units + kSelectWarps - 1) / kSelectWarps;
  const int begin = min(warp * each, units), end = min(begin + each, units);
  int better = 0, ties = 0;
  for (int unit = begin; unit < end; ++unit) {
    const Marks marks = marks_of(shared, keys, unit * kEachOfWarp + lane * kEachOfLane, threshold.key);
    better += __popc(marks.better);
    ties += __popc(marks.ties);
  }
  const Before<kTeam> before(shared, team, better, ties);
  const int first = before.of_cta.better + ties_taken(left, 0, before.of_cta.ties);

  int at = before.of_warp.better + ties_taken(left, 0, before.of_warp.ties) - first;
  int ties_before = before.of_warp.ties;
  for (int unit = begin; unit < end; ++unit) {
    const int place = unit * kEachOfWarp + lane * kEachOfLane;
    const Marks marks = marks_of(shared, keys, place, threshold.key);
    unsigned chosen = marks.better;
    if (__any_sync(0xFFFFFFFF, marks.ties != 0)) {
      const int count = __popc(marks.ties), inclusive = sum_to_lane(count);
      chosen |= lowest_bits(marks.ties, ties_taken(left, ties_before + inclusive - count, count));
      ties_before += __shfl_sync(0xFFFFFFFF, inclusive, 31);
    }
    if (!__any_sync(0xFFFFFFFF, chosen != 0)) continue;
    const int count = __popc(chosen), inclusive = sum_to_lane(count);
    for (int to = at + inclusive - count; chosen != 0; ++to, chosen &= chosen - 1) {
      shared.chosen[to] = range.begin + place + __ffs(static_cast<int>(chosen)) - 1;
    }
    at += __shfl_sync(0xFFFFFFFF, inclusive, 31);
  }
  return {first, before.mine.better + ties_taken(left, before.of_cta.ties, before.mine.ties),
          before.all.better + ties_taken(left, 0, before.all.ties)};
}

}  // namespace flashlatent::cuda::indexer
