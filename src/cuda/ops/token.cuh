// Converts cached tokens from one format to another; a warp has a few. Bits are those of the CPU backend
// (core/element.h, core/formats/fp8_656.h), NaN included.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "core/divisor.h"
#include "core/formats/fp8_656.h"

namespace flashlatent::cuda {

/// Marks fp8_656 where others have an element type.
struct Fp8Token {};

template <class Element>
__device__ __forceinline__ float to_float(std::uint16_t bits);
template <>
__device__ __forceinline__ float to_float<__nv_bfloat16>(std::uint16_t bits) {
  return __uint_as_float(std::uint32_t{bits} << 16);
}
template <>
__device__ __forceinline__ float to_float<__half>(std::uint16_t bits) {
  if ((bits & 0x7C00) != 0x7C00) return __half2float(__ushort_as_half(bits));
  return __uint_as_float((bits & 0x8000U) << 16 | 0x7F800000U | (bits & 0x3FFU) << 13);
}

template <class Element>
__device__ __forceinline__ std::uint16_t from_float(float x);
template <>
__device__ __forceinline__ std::uint16_t from_float<__nv_bfloat16>(float x) {
  if (isnan(x)) return static_cast<std::uint16_t>(__float_as_uint(x) >> 16 | 0x40);
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
template <>
__device__ __forceinline__ std::uint16_t from_float<__half>(float x) {
  if (isnan(x)) return static_cast<std::uint16_t>((__float_as_uint(x) >> 16 & 0x8000) | 0x7E00);
  return __half_as_ushort(__float2half_rn(x));
}

template <class From, class To>
__device__ __forceinline__ std::uint16_t convert(std::uint16_t bits) {
  if constexpr (std::is_same_v<From, To>) return bits;
  return from_float<To>(to_float<From>(bits));
}
template <class From, class To>
__device__ __forceinline__ std::uint32_t convert_pair(std::uint32_t pair) {
  return convert<From, To>(static_cast<std::uint16_t>(pair)) |
         std::uint32_t{convert<From, To>(static_cast<std::uint16_t>(pair >> 16))} << 16;
}

/// The type's infinity. As integers NaNs are above it and finite magnitudes below.
template <class Element>
inline constexpr std::uint32_t kInfinity = std::is_same_v<Element, __half> ? 0x7C00 : 0x7F80;
constexpr std::uint32_t kBothHalves = 0x10001;

/// The larger magnitudes of a word's first and second elements.
__device__ __forceinline__ std::uint32_t largest_magnitudes(const uint4& word) {
  constexpr std::uint32_t kMagnitudes = 0x7FFF * kBothHalves;
  return __vmaxu2(__vmaxu2(word.x & kMagnitudes, word.y & kMagnitudes),
                  __vmaxu2(word.z & kMagnitudes, word.w & kMagnitudes));
}
/// Is one of the two magnitudes at least `least`?
__device__ __forceinline__ bool reach(std::uint32_t magnitudes, std::uint32_t least) {
  return (magnitudes + (0x8000 - least) * kBothHalves & 0x8000 * kBothHalves) != 0;
}

/// For elements that are no NaN, or whose NaN's bits do not matter.
template <class Element>
__device__ __forceinline__ float2 to_floats(std::uint32_t pair) {
  if constexpr (std::is_same_v<Element, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000));
  }
}
template <class Element>
__device__ __forceinline__ std::uint32_t from_floats(float2 x) {
  if constexpr (std::is_same_v<Element, __half>) {
    const __half2 pair = __float22half2_rn(x);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __float22bfloat162_rn(x);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

/// Converts eight elements.
template <class From, class To>
__device__ __forceinline__ uint4 convert_word(uint4 x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if (reach(largest_magnitudes(x), kInfinity<From> + 1)) {
    return make_uint4(convert_pair<From, To>(x.x), convert_pair<From, To>(x.y), convert_pair<From, To>(x.z),
                      convert_pair<From, To>(x.w));
  } else {
    auto pair = [](std::uint32_t two) { return from_floats<To>(to_floats<From>(two)); };
    return make_uint4(pair(x.x), pair(x.y), pair(x.z), pair(x.w));
  }
}

/// A pointer that came through shared memory: tells the compiler that it points to global memory.
template <class T>
__device__ __forceinline__ T* global(T* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

/// A word of 16 bytes, in one access if `vectors`; 0 if the token is null.
__device__ __forceinline__ uint4 load_word(const std::uint8_t* token, int word, bool vectors) {
  if (token == nullptr) return make_uint4(0, 0, 0, 0);
  token = global(token + 16 * word);
  if (vectors) return *reinterpret_cast<const uint4*>(token);
  uint4 x;
  std::uint16_t halves[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) halves[i] = reinterpret_cast<const std::uint16_t*>(token)[i];
  memcpy(&x, halves, sizeof(x));
  return x;
}
__device__ __forceinline__ void store_word(std::uint8_t* token, int word, bool vectors, uint4 x) {
  token = global(token + 16 * word);
  if (vectors) {
    *reinterpret_cast<uint4*>(token) = x;
    return;
  }
  std::uint16_t halves[8];
  memcpy(halves, &x, sizeof(x));
#pragma unroll
  for (int i = 0; i < 8; ++i) reinterpret_cast<std::uint16_t*>(token)[i] = halves[i];
}

/// One token's move. With null as target it is skipped; with null as source it becomes 0.
struct Move {
  const std::uint8_t* from;
  const std::uint8_t* rope;  // plain token: where it would begin if it were contiguous with its RoPE part
  std::uint8_t* to;
};

/// The parts of a plain token.
struct TokenDims {
  int latent, rope;  // elements
  bool vectors;      // are addresses and both lengths multiples of 16 bytes?
  Divisor words;     // of one token
};

/// Moves tokens from one plain format to another, or unchanged.
template <class From, class To, int kTokens>
__device__ __forceinline__ void move_words(const Move (&moves)[kTokens], const TokenDims& dims, int lane) {
  constexpr bool kPlain = !std::is_same_v<From, Fp8Token>;
  // Words of tokens of 576 elements, or of 656 bytes, that a lane has in flight.
  constexpr int kBatch = (kTokens * (kPlain ? fp8_656::kDim * 2 : fp8_656::kTokenBytes) / 16 + 31) / 32;
  const int words = dims.words.value;
  for (int first = lane; first < kTokens * words; first += kBatch * 32) {
    uint4 batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + 32 * i, token = dims.words.quotient(at), word = at - token * words;
      if (token >= kTokens || moves[token].to == nullptr) continue;
      const bool rope = kPlain && word >= dims.latent / 8;
      batch[i] = load_word(rope ? moves[token].rope : moves[token].from, word, true);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + 32 * i, token = dims.words.quotient(at), word = at - token * words;
      if (token >= kTokens || moves[token].to == nullptr) continue;
      if constexpr (kPlain) {
        store_word(moves[token].to, word, true, convert_word<From, To>(batch[i]));
      } else {
        store_word(moves[token].to, word, true, batch[i]);
      }
    }
  }
}

/// The same if addresses are only aligned to elements.
template <class From, class To>
__device__ __forceinline__ void move_elements(const Move& move, const TokenDims& dims, int lane) {
  if (move.to == nullptr) return;
  for (int i = lane; i < dims.latent + dims.rope; i += 32) {
    const std::uint8_t* from = i < dims.latent ? move.from : move.rope;
    reinterpret_cast<std::uint16_t*>(move.to)[i] =
        from == nullptr ? 0 : convert<From, To>(reinterpret_cast<const std::uint16_t*>(from)[i]);
  }
}

/// A latent is 64 words of elements. A lane has words `lane` and `lane + 32`, so 16 lanes have a group, and
/// memory is accessed without gaps. Words 64 to 71 are the RoPE part: one a lane for 4 tokens.
constexpr int kHalfLatent = fp8_656::kLatentDim / 2;
constexpr int kGroupLanes = fp8_656::kGroup / 8;
constexpr int kRopeWord = fp8_656::kLatentDim / 8, kRopeWords = fp8_656::kRopeDim / 8;
static_assert(kHalfLatent == 32 * 8);

/// Encodes four elements, NaN included, to e4m3.
template <class From>
__device__ __forceinline__ std::uint32_t encode(std::uint32_t low, std::uint32_t high, float inverse) {
  auto two = [&](std::uint32_t pair) -> std::uint32_t {
    const float2 x = to_floats<From>(pair);
    return __nv_cvt_float2_to_fp8x2(make_float2(x.x * inverse, x.y * inverse), __NV_SATFINITE, __NV_E4M3);
  };
  return two(low) | two(high) << 16;
}

/// The largest finite magnitudes of the groups that two words belong to, in the halves of a register.
/// Elements that are not finite become NaN. kLanes lanes have a group.
template <class From, int kLanes>
__device__ __forceinline__ std::uint32_t group_amax(uint4 (&latent)[2]) {
  auto amax_of = [](const uint4& low, const uint4& high) {  // of either group, in the halves of a register
    const std::uint32_t a = largest_magnitudes(low), b = largest_magnitudes(high);
    std::uint32_t amax = __vmaxu2(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      amax = __vmaxu2(amax, __shfl_xor_sync(0xffffffff, amax, lanes));
    }
    return amax;
  };
  std::uint32_t amax = amax_of(latent[0], latent[1]);
  if (__any_sync(0xffffffff, reach(amax, kInfinity<From>))) {
    // Elements that are not finite become NaN, since e4m3 has no infinity, and do not count.
    uint4 finite[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto hide = [](std::uint32_t& pair) {
        const std::uint32_t nan = __vcmpgeu2(pair & 0x7FFF * kBothHalves, kInfinity<From> * kBothHalves);
        pair |= nan & 0x7FFF * kBothHalves;
        return pair & ~nan;
      };
      finite[i] = make_uint4(hide(latent[i].x), hide(latent[i].y), hide(latent[i].z), hide(latent[i].w));
    }
    amax = amax_of(finite[0], finite[1]);
  }
  return amax;
}

/// Quantises a latent to codes and scales.
template <class From>
__device__ __forceinline__ void quantize(uint4 (&latent)[2], std::uint8_t* token, int lane) {
  const std::uint32_t amax = group_amax<From, kGroupLanes>(latent);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 both = to_floats<From>(amax);
    const int exponent = fp8_656::scale_exponent(i == 0 ? both.x : both.y);
    const float inverse = fp8_656::power_of_two(-exponent);
    const uint4 x = latent[i];
    *reinterpret_cast<uint2*>(token + i * kHalfLatent + lane * 8) =
        make_uint2(encode<From>(x.x, x.y, inverse), encode<From>(x.z, x.w, inverse));
    if (lane % kGroupLanes == 0) {
      const int group = i * fp8_656::kGroups / 2 + lane / kGroupLanes;
      reinterpret_cast<float*>(token + fp8_656::kScaleOffset)[group] = fp8_656::power_of_two(exponent);
    }
  }
}

/// Quantises tokens through `staged`, so that whole sectors are written word by word.
template <class From, int kTokens>
__device__ __forceinline__ void quantize_tokens(const Move (&moves)[kTokens], bool vectors,
                                                std::uint8_t (&staged)[kTokens][fp8_656::kTokenBytes],
                                                int lane) {
  uint4 latents[kTokens][2];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    latents[i][0] = load_word(moves[i].from, lane, vectors);
    latents[i][1] = load_word(moves[i].from, lane + 32, vectors);
  }
  const int rope_token = lane / kRopeWords, rope_word = lane % kRopeWords;
  uint4 rope = make_uint4(0, 0, 0, 0);
  if (rope_token < kTokens) rope = load_word(moves[rope_token].rope, kRopeWord + rope_word, vectors);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) quantize<From>(latents[i], staged[i], lane);
  if (rope_token < kTokens) {
    reinterpret_cast<uint4*>(staged[rope_token] + fp8_656::kRopeOffset)[rope_word] =
        convert_word<From, __nv_bfloat16>(rope);
  }
  __syncwarp();
  constexpr int kWords = fp8_656::kTokenBytes / 16;
#pragma unroll
  for (int i = 0; i < (kTokens * kWords + 31) / 32; ++i) {
    const int at = lane + 32 * i, token = at / kWords, word = at % kWords;
    if (token < kTokens && moves[token].to != nullptr) {
      store_word(moves[token].to, word, true, reinterpret_cast<const uint4*>(staged[token])[word]);
    }
  }
}

/// Decodes eight codes.
template <class To>
__device__ __forceinline__ uint4 decode_word(uint2 codes, float scale) {
  auto two = [&](std::uint32_t pair) {
    const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
    const float2 x = __half22float2(halves);
    if constexpr (std::is_same_v<To, __half>) {  // its NaN differs from the instruction's
      return from_float<To>(x.x * scale) | std::uint32_t{from_float<To>(x.y * scale)} << 16;
    } else {
      return from_floats<To>(make_float2(x.x * scale, x.y * scale));
    }
  };
  return make_uint4(two(codes.x & 0xFFFF), two(codes.x >> 16), two(codes.y & 0xFFFF), two(codes.y >> 16));
}

/// Dequantises tokens.
template <class To, int kTokens>
__device__ __forceinline__ void dequantize_tokens(const Move (&moves)[kTokens], bool vectors, int lane) {
  uint2 codes[kTokens][2] = {};
  float scales[kTokens][2] = {};
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (moves[i].from == nullptr) continue;
    const std::uint8_t* from = global(moves[i].from);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto* token_scales = reinterpret_cast<const float*>(from + fp8_656::kScaleOffset);
      codes[i][half] = reinterpret_cast<const uint2*>(from + half * kHalfLatent)[lane];
      scales[i][half] = token_scales[half * fp8_656::kGroups / 2 + lane / kGroupLanes];
    }
  }
  const int rope_token = lane / kRopeWords, rope_word = lane % kRopeWords;
  uint4 rope = make_uint4(0, 0, 0, 0);
  if (rope_token < kTokens) {
    rope = load_word(moves[rope_token].from, fp8_656::kRopeOffset / 16 + rope_word, true);
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (moves[i].to == nullptr) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_word(moves[i].to, lane + 32 * half, vectors, decode_word<To>(codes[i][half], scales[i][half]));
    }
  }
  if (rope_token < kTokens && moves[rope_token].to != nullptr) {
    store_word(moves[rope_token].to, kRopeWord + rope_word, vectors, convert_word<__nv_bfloat16, To>(rope));
  }
}

}  // namespace flashlatent::cuda
