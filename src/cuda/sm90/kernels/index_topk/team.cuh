// The best of a query token's keys by the CTAs of a cluster, which have a range of them each. They add up their
// counts, list what shares the wanted key's first digit, and read what the others listed. All find the same
// threshold, and each places what it has.
#pragma once

#include "cuda/sm90/kernels/index_topk/choose.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/remote.cuh"

namespace flashlatent::cuda::indexer {

struct Team {
  int rank = 0, ctas = 1;
};

/// The sum over the team's CTAs of a word in shared memory.
__device__ __forceinline__ int sum_of_team(const Team& team, const void* word) {
  int sum = 0;
#pragma unroll
  for (int cta = 0; cta < kMostSelectTeam; ++cta) {
    if (cta < team.ctas) sum += static_cast<int>(ptx::load_from(ptx::address_in(cta, word)));
  }
  return sum;
}

/// find_digit() over the first digits of all CTAs' keys: sums of neighbouring digits, then digits.
__device__ __forceinline__ int find_first_digit(ChooseShared& shared, Threshold& threshold, const Team& team,
                                                int wanted) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread < kFirstSums) {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kFirstDigitsOfSum; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(shared.bins + thread * kFirstDigitsOfSum + i);
      sum += static_cast<int>(four.x + four.y + four.z + four.w);
    }
    shared.sums[thread] = sum;
  }
  ptx::cluster_sync();
  int counts[1] = {0};
  int digit = kFirstSums - 1 - thread;
  if (digit >= 0) counts[0] = sum_of_team(team, shared.sums + digit);
  const int begin = find_among(shared, threshold, counts, digit, 0, 0, wanted) * kFirstDigitsOfSum;
  digit = begin + kFirstDigitsOfSum - 1 - thread;
  counts[0] = 0;
  if (digit >= begin) counts[0] = sum_of_team(team, shared.bins + digit);
  return find_among(shared, threshold, counts, digit, begin, 1, wanted);
}

/// Leaves what all CTAs listed in shared.gathered, one CTA's behind the other's. `before`: how many lower ranks
/// listed; returns how many keys above the listed ones lower ranks have.
__device__ __forceinline__ int gather_listed(ChooseShared& shared, const Team& team, int& before) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  ptx::cluster_sync();  // all are listed
  int listed = 0, larger = 0;
  if (lane < team.ctas) {
    listed = static_cast<int>(ptx::load_from(ptx::address_in(lane, &shared.listed_bytes)) / 4);
    larger = static_cast<int>(ptx::load_from(ptx::address_in(lane, &shared.larger)));
  }
  int begin = 0;
  for (int cta = 0; cta < team.ctas; ++cta) {
    if (cta == team.rank) before = begin;
    const int count = __shfl_sync(0xFFFFFFFF, listed, cta);
    for (int i = thread; i < count; i += kChooseThreads) {
      shared.gathered[begin + i] = ptx::load_from(ptx::address_in(cta, shared.listed + i));
    }
    begin += count;
  }
  __syncthreads();
  return __reduce_add_sync(0xFFFFFFFF, lane < team.rank ? larger : 0);
}

/// How many of the first `count` gathered keys are chosen, and how many equal the threshold. Each warp finds
/// out.
__device__ __forceinline__ ChosenBefore chosen_before(const ChooseShared& shared, int count, const Threshold& threshold,
                                          int wanted) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int larger = 0, ties = 0;
  for (int i = lane; i < count; i += 32) {
    const std::uint32_t key = shared.gathered[i];
    larger += key > threshold.key ? 1 : 0;
    ties += key == threshold.key ? 1 : 0;
  }
  larger = __reduce_add_sync(0xFFFFFFFF, larger);
  ties = __reduce_add_sync(0xFFFFFFFF, ties);
  return {larger + min(ties, wanted - threshold.above), ties};
}

/// Places that a CTA of a team has chosen: `count` of them, in shared.chosen; their first is number `first` of
/// the team's. -1: the keys are such that one CTA must choose from all of them.
struct TeamChoice {
  int first = 0, count = -1;
};

/// All threads of all CTAs call it, with cleared counts. Afterwards no CTA reads another one's memory.
template <class Keys>
__device__ __forceinline__ TeamChoice choose_in_team(ChooseShared& shared, const Team& team, const HeldKeys& held,
                                                     const Keys& keys, int count, int wanted) {
  const Batches<Keys> batches(held, keys, count);
  Batch batch;
  batches.each(batch, false, [&] { count_first_digits(shared, batch); });
  Threshold threshold;
  const int digit = find_first_digit(shared, threshold, team, wanted);
  if (!can_list(digit, threshold)) {
    ptx::cluster_sync();
    return {};
  }
  const KeyRange range = keys_of_first_digit(digit);
  int larger = 0;
  batches.each(batch, true, [&] {
    list_keys(shared, batch, range);
    batch.each([&](std::uint32_t key) {
      if (key > range.low + range.more) ++larger;
    });
  });
  larger = __reduce_add_sync(0xFFFFFFFF, larger);
  if (threadIdx.x % 32 == 0 && larger > 0) atomicAdd(&shared.larger, larger);
  int listed_before = 0;
  const int larger_before = gather_listed(shared, team, listed_before);
  ptx::cluster_arrive();
  find_among_listed(shared, shared.gathered, threshold, wanted);
  ChosenBefore before = chosen_before(shared, listed_before, threshold, wanted);
  before.chosen += larger_before;
  __syncthreads();  // the gathered keys have been read: places take their memory
  const int chosen = place_chosen(shared, batches, batch, threshold, wanted, before);
  ptx::cluster_wait();
  return {before.chosen, chosen};
}

}  // namespace flashlatent::cuda::indexer
