// The `wanted`-th largest key of a query token, digit by digit. A level counts how often each digit occurs
// behind the digits that are already known; the counts of a cluster's CTAs are added. The time does not
// depend on keys, and neither do results on the order of threads, since counts are sums of whole numbers.
#pragma once

#include "cuda/sm90/kernels/index_topk/select_shared.cuh"
#include "cuda/sm90/ptx/permute.cuh"

namespace flashlatent::cuda::indexer {

/// What is known of the `wanted`-th largest key: its upper digits, and how many keys have larger ones. If
/// there are fewer than `wanted` keys, all digits are 0.
struct Threshold {
  std::uint32_t key = 0;
  int above = 0;
};

/// Adds up the columns, and clears them. Thread 2 b and its neighbour have digit b.
__device__ __forceinline__ std::uint32_t take_column(SelectShared& shared) {
  static_assert(kSelectThreads == 2 * kDigits);
  const int digit = static_cast<int>(threadIdx.x) / 2, half = static_cast<int>(threadIdx.x) % 2 * 16;
  std::uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    std::uint32_t& word = shared.columns[digit][half + ((i + digit) & 15)];  // neighbours in other banks
    sum += word;
    word = 0;
  }
  return sum + __shfl_xor_sync(0xFFFFFFFF, sum, 1);
}

/// Sums of all CTAs' counts. `turn`: 0 and 1 alternately. `waits`: are the other CTAs not known to have begun?
template <bool kTeam>
__device__ __forceinline__ const std::uint32_t* add_up_digits(SelectShared& shared,
                                                              const SelectTeam<kTeam>& team, int turn,
                                                              bool waits) {
  __syncthreads();  // all have counted
  std::uint32_t* own = shared.of_cta[turn][team.rank];
  const std::uint32_t sum = take_column(shared);
  if (threadIdx.x % 2 == 0) own[threadIdx.x / 2] = sum;
  __syncthreads();
  if constexpr (kTeam) {
    if (waits) ptx::cluster_wait();
    for (int i = static_cast<int>(threadIdx.x); i < team.ctas * (kDigits / 4); i += kSelectThreads) {
      const int cta = i / (kDigits / 4), quad = i % (kDigits / 4);
      if (cta == team.rank) continue;
      ptx::store_at(ptx::address_in(cta, own + 4 * quad), *reinterpret_cast<const uint4*>(own + 4 * quad));
    }
    ptx::cluster_sync();
    if (threadIdx.x < kDigits) {
      std::uint32_t total = 0;
      for (int cta = 0; cta < team.ctas; ++cta) total += shared.of_cta[turn][cta][threadIdx.x];
      own[threadIdx.x] = total;
    }
    __syncthreads();
  }
  return own;
}

/// The next digit: the largest one that, with all above it, occurs often enough. Each warp finds it.
__device__ __forceinline__ void find_digit(Threshold& threshold, const std::uint32_t* totals, int wanted) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = kDigits - kEachOfLane * (lane + 1);
  const uint4 low = *reinterpret_cast<const uint4*>(totals + first);
  const uint4 high = *reinterpret_cast<const uint4*>(totals + first + 4);
  const std::uint32_t counts[kEachOfLane] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  int mine = 0;
#pragma unroll
  for (std::uint32_t count : counts) mine += static_cast<int>(count);
  int inclusive = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFF, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  const unsigned enough = __ballot_sync(0xFFFFFFFF, threshold.above + inclusive >= wanted);
  const int source = enough == 0 ? 31 : __ffs(static_cast<int>(enough)) - 1;
  int above = threshold.above + inclusive - mine, digit = -1;
#pragma unroll
  for (int i = kEachOfLane - 1; i >= 0; --i) {
    if (digit >= 0) continue;
    const int count = static_cast<int>(counts[i]);
    if (above + count >= wanted || first + i == 0) {
      digit = first + i;
    } else {
      above += count;
    }
  }
  threshold.above = __shfl_sync(0xFFFFFFFF, above, source);
  threshold.key = threshold.key << kDigitBits |
                  static_cast<std::uint32_t>(__shfl_sync(0xFFFFFFFF, digit, source));
}

/// Counts a digit in this lane's column. `bytes`: the digit times the bytes of a row of columns, in these
/// bits; others are ignored.
inline constexpr int kColumnsShift = 7;
static_assert(sizeof(SelectShared::columns) == kDigits << kColumnsShift);
__device__ __forceinline__ void count_bits(SelectShared& shared, std::uint32_t bytes) {
  constexpr std::uint32_t kBits = (kDigits - 1) << kColumnsShift;
  auto* columns = reinterpret_cast<std::uint8_t*>(shared.columns);
  atomicAdd(reinterpret_cast<std::uint32_t*>(columns + ((bytes & kBits) | threadIdx.x % 32 * 4)), 1U);
}
/// Counts the digit in bits `kBegin` to `kBegin` + 7.
template <int kBegin>
__device__ __forceinline__ void count_digit(SelectShared& shared, std::uint32_t word) {
  if constexpr (kBegin >= kColumnsShift) {
    count_bits(shared, word >> (kBegin - kColumnsShift));
  } else {
    count_bits(shared, word << (kColumnsShift - kBegin));
  }
}

/// The upper halves of eight neighbouring keys, in order.
struct Eight {
  std::uint32_t words[kEachOfLane / 2];
};
__device__ __forceinline__ std::uint32_t upper_halves(std::uint32_t first, std::uint32_t second) {
  return ptx::permute_bytes(first, second, 0x7632);
}

/// A CTA's keys. `Keys`: key(place) and four(place, end), keys of four places, 0 from `end` on.
template <class Keys>
struct RangeKeys {
  const Keys& keys;
  SelectRange range;

  /// From the range's begin; 0, which no key has, behind its end.
  __device__ __forceinline__ std::uint32_t key(int i) const {
    return i < range.count ? keys.key(range.begin + i) : 0;
  }
  __device__ __forceinline__ uint4 four(int i) const {
    return keys.four(range.begin + i, range.begin + range.count);
  }
  /// `i`: a multiple of kEachOfLane, in one of range.units().
  __device__ __forceinline__ Eight eight(const SelectShared& shared, int i) const {
    if (range.held()) {
      const uint4 words = shared.upper_words[i / kEachOfLane];
      return {words.x, words.y, words.z, words.w};
    }
    const uint4 a = four(i), b = four(i + 4);
    return {upper_halves(a.x, a.y), upper_halves(a.z, a.w), upper_halves(b.x, b.y), upper_halves(b.z, b.w)};
  }
};

/// Counts the keys' uppermost digits, and keeps their upper halves.
template <class Keys>
__device__ __forceinline__ void count_first_digits(SelectShared& shared, const RangeKeys<Keys>& keys) {
  constexpr int kInFlight = 4, kStep = 4 * kSelectThreads;
  const int end = keys.range.units() * kEachOfWarp;
  for (int first = static_cast<int>(threadIdx.x) * 4; first < end; first += kStep * kInFlight) {
    uint4 x[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) x[i] = keys.four(first + i * kStep);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int at = first + i * kStep;
      if (at >= end) break;
      if (keys.range.held()) {
        *reinterpret_cast<uint2*>(shared.upper + at) =
            make_uint2(upper_halves(x[i].x, x[i].y), upper_halves(x[i].z, x[i].w));
      }
      const std::uint32_t each[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
      if (at + 4 <= keys.range.count) {
#pragma unroll
        for (std::uint32_t key : each) count_digit<24>(shared, key);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (at + j < keys.range.count) count_digit<24>(shared, each[j]);
        }
      }
    }
  }
}

/// Calls visit(i, eight) for all of a CTA's keys.
template <class Keys, class Visit>
__device__ __forceinline__ void for_all_eights(const SelectShared& shared, const RangeKeys<Keys>& keys,
                                               Visit visit) {
  const int end = keys.range.units() * kEachOfWarp;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x) * kEachOfLane; i < end; i += kSelectThreads * kEachOfLane) {
    visit(i, keys.eight(shared, i));
  }
}

/// Counts the second digits of keys whose first digit is known. Zeros behind the range's end are counted too:
/// they only could raise the count of digit 0 behind digit 0.
template <class Keys>
__device__ __forceinline__ void count_second_digits(SelectShared& shared, const RangeKeys<Keys>& keys,
                                                    std::uint32_t known) {
  for_all_eights(shared, keys, [&](int, const Eight& eight) {
#pragma unroll
    for (std::uint32_t word : eight.words) {
      if ((word & 0xFF00) == known << 8) count_digit<0>(shared, word);
      if (word >> 24 == known) count_digit<16>(shared, word);
    }
  });
}

/// Calls visit(i) for keys with this upper half.
template <class Visit>
__device__ __forceinline__ void for_equal_halves(const Eight& eight, int first, std::uint32_t half,
                                                 Visit visit) {
  const std::uint32_t both = half * 0x10001;
#pragma unroll
  for (int k = 0; k < kEachOfLane / 2; ++k) {
    const std::uint32_t apart = eight.words[k] ^ both;
    if (((apart - 0x10001) & ~apart & 0x80008000) == 0) continue;  // no half is 0
    if ((apart & 0xFFFF) == 0) visit(first + 2 * k);
    if (apart >> 16 == 0) visit(first + 2 * k + 1);
  }
}

/// Counts the digit behind `known`, two digits or three.
template <int kKnown, class Keys>
__device__ __forceinline__ void count_later_digits(SelectShared& shared, const RangeKeys<Keys>& keys,
                                                   std::uint32_t known) {
  constexpr int kShift = 32 - (kKnown + 1) * kDigitBits;
  const std::uint32_t half = kKnown == 2 ? known : known >> kDigitBits;
  for_all_eights(shared, keys, [&](int first, const Eight& eight) {
    for_equal_halves(eight, first, half, [&](int i) {
      const std::uint32_t key = keys.key(i);
      if (kKnown == 2 || key >> (32 - kKnown * kDigitBits) == known) count_digit<kShift>(shared, key);
    });
  });
}

/// The `wanted`-th largest key, or 0. The columns are cleared; all threads of all CTAs call it.
template <bool kTeam, class Keys>
__device__ __forceinline__ Threshold find_threshold(SelectShared& shared, const SelectTeam<kTeam>& team,
                                                    const RangeKeys<Keys>& keys, int wanted, bool waits) {
  Threshold threshold;
  count_first_digits(shared, keys);
  find_digit(threshold, add_up_digits<kTeam>(shared, team, 0, waits), wanted);
  count_second_digits(shared, keys, threshold.key);
  find_digit(threshold, add_up_digits<kTeam>(shared, team, 1, false), wanted);
  count_later_digits<2>(shared, keys, threshold.key);
  find_digit(threshold, add_up_digits<kTeam>(shared, team, 0, false), wanted);
  count_later_digits<3>(shared, keys, threshold.key);
  find_digit(threshold, add_up_digits<kTeam>(shared, team, 1, false), wanted);
  return threshold;
}

}  // namespace flashlatent::cuda::indexer
