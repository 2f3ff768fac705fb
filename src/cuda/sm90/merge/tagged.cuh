// Values in memory that carry the number of their merge. A reader loads them until the number is right: there
// is no fence, and no trip to a counter before that to the values. 16 bytes are stored and loaded atomically:
// 8 of values, 8 of the tag. (NCCL's LL protocol has the idea of flags beside the data.)
#pragma once

#include "cuda/sm90/merge/packed_row.cuh"
#include "cuda/sm90/ptx/word128.cuh"

namespace flashlatent::sm90 {

/// A tag has 56 bits: memory holds the right one by chance with probability 2^-56. The other 8 bits are the
/// values' exponent.
using Tag = std::uint64_t;
inline constexpr int kTagShift = 8;
inline constexpr Tag kTagMask = ~Tag{0} >> kTagShift;

__device__ __forceinline__ bool has_tag(const ptx::Word128& word, Tag tag) {
  return word.high >> kTagShift == tag;
}
__device__ __forceinline__ std::uint64_t two_words(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}
__device__ __forceinline__ ptx::Word128 tagged(float a, float b, Tag tag) {
  return {two_words(__float_as_uint(a), __float_as_uint(b)), tag << kTagShift};
}
__device__ __forceinline__ float2 floats_of(const ptx::Word128& word) {
  return make_float2(__uint_as_float(static_cast<std::uint32_t>(word.low)),
                     __uint_as_float(static_cast<std::uint32_t>(word.low >> 32)));
}

/// A thread's four values of a unit. fp16 calls: as fp32.
template <class Element>
struct TaggedFour {
  static constexpr int kWords = 2;
  ptx::Word128 words[kWords];

  __device__ __forceinline__ static TaggedFour of(const float (&x)[4], Tag tag) {
    return {{tagged(x[0], x[1], tag), tagged(x[2], x[3], tag)}};
  }
  __device__ __forceinline__ bool has(Tag tag) const {
    return has_tag(words[0], tag) && has_tag(words[1], tag);
  }
  __device__ __forceinline__ float4 values() const {
    const float2 a = floats_of(words[0]), b = floats_of(words[1]);
    return make_float4(a.x, a.y, b.x, b.y);
  }
};

/// bf16 calls: as fp16, relative to a power of two (packed_row.cuh).
template <>
struct TaggedFour<__nv_bfloat16> {
  static constexpr int kWords = 1;
  ptx::Word128 words[kWords];

  __device__ __forceinline__ static TaggedFour of(const float (&x)[4], Tag tag) {
    float bound = 0;
#pragma unroll
    for (float v : x) bound = fmaxf(bound, fabsf(fmaf(v, 0.0F, v)));  // NaN for what is not finite
    const Fp16Scale fp16(bound);
    return {{{two_words(pack<__half>(x[0] * fp16.scale, x[1] * fp16.scale),
                        pack<__half>(x[2] * fp16.scale, x[3] * fp16.scale)),
              tag << kTagShift | __float_as_uint(fp16.unit) >> 23}}};
  }
  __device__ __forceinline__ bool has(Tag tag) const {
    return has_tag(words[0], tag);
  }
  __device__ __forceinline__ float4 values() const {
    const float unit = __uint_as_float(static_cast<std::uint32_t>(words[0].high & 0xFF) << 23);
    const float2 a = unpack<__half>(static_cast<std::uint32_t>(words[0].low));
    const float2 b = unpack<__half>(static_cast<std::uint32_t>(words[0].low >> 32));
    return make_float4(a.x * unit, a.y * unit, b.x * unit, b.y * unit);
  }
};

}  // namespace flashlatent::sm90
