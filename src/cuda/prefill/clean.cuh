// Values that not all rows see, before they are multiplied. A weight of 0 does not silence NaN, so that
// values which some row must not see are cleaned: those of dead tokens (tails, pages that are none) become 0,
// and of tokens that some rows of the tile attend to and others do not what is not finite does, and is noted
// for those that do.
#pragma once

#include "cuda/parts/mask.cuh"
#include "cuda/prefill/jobs.cuh"
#include "cuda/prefill/smem_layout.cuh"

namespace flashlatent::prefill {

/// A block's tokens as bits.
template <class Config>
struct Tokens {
  std::uint64_t bits[Config::kWords];

  __device__ __forceinline__ bool has(int token) const {
    std::uint64_t word = bits[0];
#pragma unroll
    for (int i = 1; i < Config::kWords; ++i) word = token / 64 == i ? bits[i] : word;  // no stack for bits
    return word >> token % 64 & 1;
  }
  __device__ __forceinline__ bool all() const {
    std::uint64_t common = parts::kAllLive;
#pragma unroll
    for (std::uint64_t word : bits) common &= word;
    return common == parts::kAllLive;
  }
};

/// What of two elements is not finite becomes 0.
template <class Element>
__device__ __forceinline__ void note(std::uint32_t& pair, int index, NotFinite& noted) {
  constexpr std::uint32_t kExponent = parts::kExponent<Element>;
  if (!parts::low_is_poison<Element>(pair) && !parts::high_is_poison<Element>(pair)) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t element = pair >> (16 * i) & 0xffff;
    if ((element & kExponent) != kExponent) continue;
    const bool nan = (element & 0x7fff) != kExponent;
    if (nan || element < 0x8000) noted.plus |= 1 << (index + i);
    if (nan || element >= 0x8000) noted.minus |= 1 << (index + i);
    pair &= i == 0 ? 0xffff0000 : 0x0000ffff;
  }
}

/// By one warp, a quarter of the tokens of the block in `stage`, which begins with token `start`. `all`: what
/// all rows attend to.
template <class Config>
__device__ __forceinline__ void clean(SharedMemory<Config>& shared, int stage, const Tokens<Config>& live,
                                      int start, Range all, int quarter) {
  using Element = typename Config::Element;
  constexpr int kUnits = Config::kDim / 8;
  constexpr int kTokens = Config::kBlockTokens / 4;
  const int lane = threadIdx.x % 32;
  std::uint32_t poisoned = 0;
#pragma unroll 1
  for (int i = lane; i < kTokens * kUnits; i += 32) {
    const int mine = i / kUnits, unit = i % kUnits;
    const int token = quarter * kTokens + mine;
    const bool dead = !live.has(token);
    if (!dead && start + token >= all.begin && start + token < all.end) continue;
    uint4* place = shared.values[stage].unit(token, unit);
    if (dead) {
      *place = make_uint4(0, 0, 0, 0);
      continue;
    }
    uint4 value = *place;
    NotFinite noted = {0, 0};
    note<Element>(value.x, 0, noted);
    note<Element>(value.y, 2, noted);
    note<Element>(value.z, 4, noted);
    note<Element>(value.w, 6, noted);
    shared.not_finite[stage][token][unit] = noted;
    if ((noted.plus | noted.minus) == 0) continue;
    poisoned |= 1U << mine;
    *place = value;
  }
  poisoned = __reduce_or_sync(0xffffffff, poisoned);
  if (lane == 0) shared.stages[stage].poisoned[quarter] = poisoned;
}

}  // namespace flashlatent::prefill
