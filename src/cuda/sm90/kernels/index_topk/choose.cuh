// The `wanted` best places of a sequence of keys, in order: those above the threshold, and of those equal to
// it the first. By a CTA.
//
// Keys are counted by their first digit. Those that share the wanted key's are few, and are looked at alone.
#pragma once

#include "cuda/sm90/kernels/index_topk/batches.cuh"
#include "cuda/sm90/ptx/push.cuh"

namespace flashlatent::cuda::indexer {

/// Counts keys by their first digit.
__device__ __forceinline__ void count_first_digits(ChooseShared& shared, const Batch& batch) {
  auto* middle = reinterpret_cast<std::uint8_t*>(shared.bins + kHalfOfFirst);
  batch.each([&](std::uint32_t key) {
    atomicAdd(reinterpret_cast<std::uint32_t*>(middle + first_digit_bytes(key)), 1U);
  });
}

/// Puts keys of a range behind those in shared.listed, in any order.
__device__ __forceinline__ void list_keys(ChooseShared& shared, const Batch& batch, const KeyRange& range) {
  std::uint32_t marks = 0;
#pragma unroll
  for (int i = 0; i < 4 * kGroupsOfBatch; ++i) {
    if (i / 4 >= batch.groups) break;
    if (batch.of_group[i / 4][i % 4] - range.low <= range.more) marks |= 1U << i;
  }
  if (marks == 0) return;  // in most warps there is none
  const std::uint32_t bytes = atomicAdd(&shared.listed_bytes, 4 * __popc(marks));
  std::uint32_t to = ptx::shared_address(shared.listed) + bytes;
#pragma unroll
  for (int i = 0; i < 4 * kGroupsOfBatch; ++i) ptx::push_if(marks, 1U << i, to, batch.of_group[i / 4][i % 4]);
}

/// Keys in shared memory.
struct SharedKeys {
  const std::uint32_t* keys;

  __device__ __forceinline__ uint4 four(int place, int end) const {
    const auto one = [&](int i) { return place + i < end ? keys[place + i] : 0; };
    return make_uint4(one(0), one(1), one(2), one(3));
  }
};

/// Finds the `wanted`-th largest of the keys of a range, digit by digit. `batch`: of few keys it holds all.
/// All threads call it, behind a barrier. 0, which stands behind the end, is out of all ranges but that of
/// all keys.
template <class Keys>
__device__ __forceinline__ Threshold find_by_digits(ChooseShared& shared, const Batches<Keys>& batches,
                                                    Batch& batch, const KeyRange& range, int wanted) {
  Threshold threshold;
  int turn = 1;
#pragma unroll 1
  for (int bits = 32 - __clz(static_cast<int>(range.more)); bits > 0;) {  // bits that are not known
    const int shift = max(bits - kDigitBits, 0);
    const std::uint32_t known = bits == 32 ? 0 : 0xFFFFFFFFU << bits;
    __syncthreads();
    clear_bins<kBins>(shared);
    __syncthreads();
    batches.each(batch, true, [&] {
      batch.each([&](std::uint32_t key) {
        const std::uint32_t x = key - range.low;
        if (x <= range.more && ((x ^ threshold.key) & known) == 0) {
          atomicAdd(&shared.bins[(x & ~known) >> shift], 1U);
        }
      });
    });
    const int digit = find_digit<kBins>(shared, threshold, turn ^= 1, wanted);
    threshold.key |= static_cast<std::uint32_t>(digit) << shift;
    bits = shift;
  }
  threshold.key += range.low;
  return threshold;
}

/// Completes a threshold of which the first digit is known, from all keys that have it: threshold.equal
/// `keys`. `range`: theirs. All threads call it, behind a barrier.
__device__ __forceinline__ void find_among_listed(ChooseShared& shared, const std::uint32_t* keys,
                                                  const KeyRange& range, Threshold& threshold, int wanted) {
  if (threshold.equal <= kComparedKeys) return compare_keys(shared, keys, threshold, wanted);
  const HeldKeys none;
  const SharedKeys listed{keys};
  const Batches<SharedKeys> batches(none, listed, threshold.equal);
  Batch batch;
  batches.each(batch, false, [] {});
  const int above = threshold.above;
  threshold = find_by_digits(shared, batches, batch, range, wanted - above);
  threshold.above += above;
}

/// Is what the first digit says enough? Places without a key have the digit 0, too.
__device__ __forceinline__ bool can_list(int digit, const Threshold& threshold) {
  return digit > 0 && threshold.equal <= kListedKeys;
}

/// Where the marks of a batch's groups begin among all marks of the CTA.
struct GroupBegins {
  int of_group[kGroupsOfBatch];
};

/// `marks`: bits 4 i to 4 i + 3 are of group i. All threads call it. `at`: marks of earlier batches; this
/// batch's are added. `turn`: 0 and 1 in turn.
__device__ __forceinline__ GroupBegins begins_of(ChooseShared& shared, std::uint32_t marks, int& at,
                                                 int turn) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // Sums of neighbouring bits, then of neighbouring pairs: a nibble has its count. Then a byte has.
  const std::uint32_t pairs = marks - (marks >> 1 & 0x5555);
  const std::uint32_t nibbles = (pairs & 0x3333) + (pairs >> 2 & 0x3333);
  const std::uint32_t counts = __byte_perm(nibbles & 0x0F0F, nibbles >> 4 & 0x0F0F, 0x5140);
  const auto inclusive = static_cast<std::uint32_t>(sum_to_lane(static_cast<int>(counts)));  // to 128 each
  if (lane == 31) shared.warps[turn][warp] = static_cast<int>(inclusive);
  __syncthreads();
  const std::uint32_t exclusive = inclusive - counts;
  const auto of_warp = static_cast<std::uint32_t>(lane < kChooseWarps ? shared.warps[turn][lane] : 0);
  GroupBegins begins;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Two groups at a time, 16 bits each: a group has up to 2,048.
    const std::uint32_t pair = __byte_perm(of_warp, 0, half == 0 ? 0x4140 : 0x4342);
    const std::uint32_t before = __reduce_add_sync(0xFFFFFFFF, lane < warp ? pair : 0);
    const std::uint32_t all = __reduce_add_sync(0xFFFFFFFF, pair);
    begins.of_group[2 * half] = at + static_cast<int>((before & 0xFFFF) + (exclusive >> 16 * half & 0xFF));
    at += static_cast<int>(all & 0xFFFF);
    begins.of_group[2 * half + 1] =
        at + static_cast<int>((before >> 16) + (exclusive >> (16 * half + 8) & 0xFF));
    at += static_cast<int>(all >> 16);
  }
  return begins;
}

/// A bit for each of the batch's keys that is at least `least`.
__device__ __forceinline__ std::uint32_t marks_from(const Batch& batch, std::uint32_t least) {
  std::uint32_t marks = 0;
#pragma unroll
  for (int i = 0; i < 4 * kGroupsOfBatch; ++i) {
    if (i / 4 >= batch.groups) break;
    if (batch.of_group[i / 4][i % 4] >= least) marks |= 1U << i;
  }
  return marks;
}

/// What other CTAs that choose together have before this one: chosen keys, and keys equal to the threshold.
struct ChosenBefore {
  int chosen = 0, ties = 0;
};

/// Where chosen places go: to shared memory, or straight to the results.
struct SharedPlaces {
  std::uint32_t begin;

  __device__ __forceinline__ explicit SharedPlaces(ChooseShared& shared)
      : begin(ptx::shared_address(shared.chosen)) {}
  __device__ __forceinline__ std::uint32_t at(int number) const {
    return begin + static_cast<std::uint32_t>(number) * 4;
  }
};
struct ResultPlaces {
  std::int32_t* results;

  __device__ __forceinline__ std::int32_t* at(int number) const { return results + number; }
};

/// Puts the places of the keys from the threshold on, plus `offset`, to where they go, in order, and returns
/// how many there are. Of equal keys the first are chosen. All threads call it.
template <class Keys, class Places>
__device__ __forceinline__ int place_chosen(ChooseShared& shared, const Batches<Keys>& batches, Batch& batch,
                                            const Threshold& threshold, int wanted,
                                            const ChosenBefore& before, const Places& places, int offset) {
  // Of equal keys `left` are wanted; 0 is no key.
  const std::uint32_t least = threshold.key == 0 ? 1 : threshold.key;
  const int left = wanted - threshold.above;
  const bool some_ties = threshold.key != 0 && threshold.equal > left;
  int at = 0, ties_before = before.ties, turn = 0;
  batches.each(batch, true, [&] {
    std::uint32_t marks = marks_from(batch, least);
    if (some_ties) {
      const std::uint32_t better = least == 0xFFFFFFFFU ? 0 : marks_from(batch, least + 1),
                          ties = marks & ~better;
      GroupBegins numbers = begins_of(shared, ties, ties_before, turn ^= 1);
      marks = better;
#pragma unroll
      for (int i = 0; i < 4 * kGroupsOfBatch; ++i) {
        if ((ties >> i & 1) != 0 && numbers.of_group[i / 4]++ < left) marks |= 1U << i;
      }
    }
    const GroupBegins begins = begins_of(shared, marks, at, turn ^= 1);
#pragma unroll
    for (int group = 0; group < kGroupsOfBatch; ++group) {
      if (group >= batch.groups) break;
      auto to = places.at(begins.of_group[group]);
      const int place = offset + batch.place(group);
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::push_if(marks, 1U << (4 * group + i), to, place + i);
    }
  });
  return at;
}

/// Finds the `wanted`-th largest of a CTA's keys. `batch`: of few keys it holds all afterwards. All threads
/// call it, behind a barrier and with cleared counts. `Keys`: four(place, end), keys of four places, 0 from
/// `end` on.
template <class Keys>
__device__ __forceinline__ Threshold find_threshold(ChooseShared& shared, const Batches<Keys>& batches,
                                                    Batch& batch, int wanted) {
  batches.each(batch, false, [&] { count_first_digits(shared, batch); });
  Threshold threshold;
  const int digit = find_digit<kFirstBins>(shared, threshold, 0, wanted);
  if (!can_list(digit, threshold)) return find_by_digits(shared, batches, batch, {0, 0xFFFFFFFFU}, wanted);
  const KeyRange range = keys_of_first_digit(digit);
  batches.each(batch, true, [&] { list_keys(shared, batch, range); });
  __syncthreads();
  find_among_listed(shared, shared.listed, range, threshold, wanted);
  return threshold;
}

}  // namespace flashlatent::cuda::indexer
