// The best of a query token's keys by the CTAs of a cluster, which have a range of them each. Each CTA tells
// all others its counts, then the keys that share the wanted key's first digit. So all find the same
// threshold, and each places what it has.
//
// They push what the others' barriers count: nobody waits for stores to be done before it says so, which a
// barrier of the cluster would.
#pragma once

#include "cuda/sm90/kernels/index_topk/choose.cuh"
#include "cuda/sm90/ptx/remote_store.cuh"

namespace flashlatent::cuda::indexer {

struct Team {
  int rank = 0, ctas = 1;
};

/// What other CTAs push.
struct TeamShared {
  alignas(16) int sums[kMostSelectTeam][kFirstSums];           ///< Of neighbouring digits.
  alignas(16) int digits[kMostSelectTeam][kFirstDigitsOfSum];  ///< Those of one sum.
  std::uint32_t keys[kListedKeys];                             ///< Listed ones, in the order of CTAs.
  ptx::Barrier summed, counted, listed;                        ///< Each completes once.
};

/// Before other CTAs push; the cluster's barrier follows.
__device__ __forceinline__ void prepare_team(TeamShared& shared) {
  if (threadIdx.x != 0) return;
  ptx::init(shared.summed, 1);
  ptx::init(shared.counted, 1);
  ptx::init(shared.listed, 1);
  ptx::publish_barriers();
}

/// Stores `value` at the same place of a CTA's shared memory.
__device__ __forceinline__ void push(int cta, const void* place, std::uint32_t value,
                                     const ptx::Barrier& barrier) {
  ptx::store_async(ptx::address_in(cta, place), value, ptx::address_in(cta, &barrier));
}
/// One thread calls it.
__device__ __forceinline__ void expect_words(ptx::Barrier& barrier, int words) {
  ptx::arrive_expecting(barrier, words * 4);
}

/// The first digit of the wanted key, and how many keys the CTAs have about it.
struct TeamDigit {
  int digit;
  int larger_before;  ///< Larger digits in lower ranks.
  int listed_before;  ///< The digit in lower ranks.
};

/// find_digit() over the first digits of all CTAs' keys: sums of neighbouring digits, then digits.
__device__ __forceinline__ TeamDigit find_first_digit(ChooseShared& shared, TeamShared& team_shared,
                                                      Threshold& threshold, const Team& team, int wanted) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  if (thread == 0) {
    expect_words(team_shared.summed, team.ctas * kFirstSums);
    expect_words(team_shared.counted, team.ctas * kFirstDigitsOfSum);
  }
  __syncthreads();
  // Two threads have a sum's digits, and push to half of the CTAs each.
  static_assert(kChooseThreads == 2 * kFirstSums);
  const int own = thread / 2;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kFirstDigitsOfSum / 2; i += 4) {
    const int at = own * kFirstDigitsOfSum + thread % 2 * (kFirstDigitsOfSum / 2) + i;
    const uint4 four = *reinterpret_cast<const uint4*>(shared.bins + at);
    sum += static_cast<int>(four.x + four.y + four.z + four.w);
  }
  sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
  for (int cta = thread % 2; cta < team.ctas; cta += 2) {
    push(cta, &team_shared.sums[team.rank][own], static_cast<std::uint32_t>(sum), team_shared.summed);
  }
  ptx::wait_for_cluster(team_shared.summed, 0);
  const int sum_digit = kFirstSums - 1 - thread;
  int counts[1] = {0}, before = 0;
  if (sum_digit >= 0) {
#pragma unroll
    for (int cta = 0; cta < kMostSelectTeam; ++cta) {
      const int count = cta < team.ctas ? team_shared.sums[cta][sum_digit] : 0;
      counts[0] += count;
      before += cta < team.rank ? count : 0;
    }
  }
  const int found = find_among(shared, threshold, counts, sum_digit, 0, 0, wanted);
  if (thread < team.ctas * kFirstDigitsOfSum) {
    const int digit = thread % kFirstDigitsOfSum;
    push(thread / kFirstDigitsOfSum, &team_shared.digits[team.rank][digit],
         shared.bins[found * kFirstDigitsOfSum + digit], team_shared.counted);
  }
  // Meanwhile: how many keys of lower ranks have larger sums' digits.
  before = __reduce_add_sync(0xFFFFFFFF, sum_digit > found ? before : 0);
  if (lane == 0 && before > 0) atomicAdd(&shared.larger, before);
  ptx::wait_for_cluster(team_shared.counted, 0);
  // Each warp finds the digit: lane i has the i-th largest.
  int count = 0, count_before = 0;
  if (lane < kFirstDigitsOfSum) {
#pragma unroll
    for (int cta = 0; cta < kMostSelectTeam; ++cta) {
      const int x = cta < team.ctas ? team_shared.digits[cta][kFirstDigitsOfSum - 1 - lane] : 0;
      count += x;
      count_before += cta < team.rank ? x : 0;
    }
  }
  const int inclusive = threshold.above + sum_to_lane(count);
  const int place = min(__popc(__ballot_sync(0xFFFFFFFF, inclusive < wanted)), kFirstDigitsOfSum - 1);
  threshold.above = __shfl_sync(0xFFFFFFFF, inclusive - count, place);
  threshold.equal = __shfl_sync(0xFFFFFFFF, count, place);
  __syncthreads();  // shared.larger is complete
  const int larger_before = __reduce_add_sync(0xFFFFFFFF, lane < place ? count_before : 0);
  return {found * kFirstDigitsOfSum + kFirstDigitsOfSum - 1 - place, shared.larger + larger_before,
          __shfl_sync(0xFFFFFFFF, count_before, place)};
}

/// How many of the first `count` listed keys are chosen, and how many equal the threshold. Each warp finds
/// out.
__device__ __forceinline__ ChosenBefore chosen_before(const std::uint32_t* keys, int count,
                                                      const Threshold& threshold, int wanted) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int larger = 0, ties = 0;
  for (int i = lane; i < count; i += 32) {
    larger += keys[i] > threshold.key ? 1 : 0;
    ties += keys[i] == threshold.key ? 1 : 0;
  }
  larger = __reduce_add_sync(0xFFFFFFFF, larger);
  ties = __reduce_add_sync(0xFFFFFFFF, ties);
  return {larger + min(ties, wanted - threshold.above), ties};
}

/// What a CTA of a team knows of the wanted key. If it is not `found`, the keys are such that one CTA must
/// choose from all of them.
struct TeamThreshold {
  Threshold threshold;
  ChosenBefore before;
  bool found = false;
};

/// find_threshold() over the keys of all CTAs, whose threads all call it, with prepared barriers. Afterwards
/// no CTA stores to another one's memory.
template <class Keys>
__device__ __forceinline__ TeamThreshold find_threshold(ChooseShared& shared, TeamShared& team_shared,
                                                        const Team& team, const Batches<Keys>& batches,
                                                        Batch& batch, int wanted) {
  batches.each(batch, false, [&] { count_first_digits(shared, batch); });
  TeamThreshold result;
  Threshold& threshold = result.threshold;
  const TeamDigit digit = find_first_digit(shared, team_shared, threshold, team, wanted);
  if (!can_list(digit.digit, threshold)) return result;
  if (threadIdx.x == 0) expect_words(team_shared.listed, threshold.equal);
  const KeyRange range = keys_of_first_digit(digit.digit);
  batches.each(batch, true, [&] { list_keys(shared, batch, range); });
  __syncthreads();
  const int listed = static_cast<int>(shared.listed_bytes) / 4;
  for (int i = static_cast<int>(threadIdx.x); i < listed * team.ctas; i += kChooseThreads) {
    const int cta = i / listed, key = i - cta * listed;
    push(cta, team_shared.keys + digit.listed_before + key, shared.listed[key], team_shared.listed);
  }
  ptx::wait_for_cluster(team_shared.listed, 0);
  find_among_listed(shared, team_shared.keys, range, threshold, wanted);
  result.before = chosen_before(team_shared.keys, digit.listed_before, threshold, wanted);
  result.before.chosen += digit.larger_before;
  result.found = true;
  return result;
}

}  // namespace flashlatent::cuda::indexer
