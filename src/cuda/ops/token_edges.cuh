// What is done to queries, outputs, new tokens and index keys at a layer's edges: a thread has a word of 8
// columns. All loads are issued before the first value is used: they are volatile, so the compiler does not
// move them.
#pragma once

#include "core/token_edges.h"
#include "cuda/ops/token.cuh"

namespace flashlatent::cuda::token_edges {

using edges::TokenSteps;

inline constexpr int kWord = edges::kWordColumns;

__device__ __forceinline__ uint4 load_16(const void* from) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}
__device__ __forceinline__ uint2 load_8(const void* from) {
  uint2 x;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
  return x;
}

__device__ __forceinline__ float half_number(std::uint32_t bits, bool bf16) {
  return bf16 ? to_float<__nv_bfloat16>(static_cast<std::uint16_t>(bits))
              : to_float<__half>(static_cast<std::uint16_t>(bits));
}

/// A word as it is in memory.
class RawWord {
 public:
  __device__ __forceinline__ RawWord() : words_{} {}
  /// Loads elements [at, at + 8).
  __device__ __forceinline__ RawWord(const void* data, Dtype dtype, std::int64_t at, bool vectors)
      : words_{} {
    if (dtype == Dtype::kF32) {
      const float* from = static_cast<const float*>(data) + at;
      if (vectors) {
        words_[0] = load_16(from);
        words_[1] = load_16(from + 4);
      } else {
        memcpy_elements<float>(from);
      }
    } else {
      const std::uint16_t* from = static_cast<const std::uint16_t*>(data) + at;
      if (vectors) {
        words_[0] = load_16(from);
      } else {
        memcpy_elements<std::uint16_t>(from);
      }
    }
  }

  __device__ __forceinline__ void unpack(Dtype dtype, float (&x)[kWord]) const {
    const std::uint32_t bits[8] = {words_[0].x, words_[0].y, words_[0].z, words_[0].w,
                                   words_[1].x, words_[1].y, words_[1].z, words_[1].w};
#pragma unroll
    for (int i = 0; i < kWord; ++i) {
      x[i] = dtype == Dtype::kF32 ? __uint_as_float(bits[i])
                                  : half_number(bits[i / 2] >> 16 * (i % 2) & 0xFFFF, dtype == Dtype::kBF16);
    }
  }

 private:
  template <class Element>
  __device__ __forceinline__ void memcpy_elements(const Element* from) {
    Element elements[kWord];
#pragma unroll
    for (int i = 0; i < kWord; ++i) elements[i] = from[i];
    memcpy(words_, elements, sizeof(elements));
  }

  uint4 words_[2];
};

/// Weights and biases of a word of a norm.
struct NormWord {
  RawWord weight, bias;

  __device__ __forceinline__ NormWord() {}
  __device__ __forceinline__ NormWord(const TokenSteps& steps, int column, bool vectors) {
    if (steps.epsilon == 0 || column >= steps.norm_columns) return;
    if (steps.weight != nullptr) weight = RawWord(steps.weight, steps.weight_dtype, column, vectors);
    if (steps.bias != nullptr) bias = RawWord(steps.bias, steps.bias_dtype, column, vectors);
  }

  /// Applies the norm to elements, or with a bias to their differences from the mean.
  __device__ __forceinline__ void apply(const TokenSteps& steps, float factor, float (&x)[kWord]) const {
    float weights[kWord], biases[kWord];
    weight.unpack(steps.weight_dtype, weights);
    bias.unpack(steps.bias_dtype, biases);
#pragma unroll
    for (int i = 0; i < kWord; ++i) {
      x[i] = edges::normed(x[i], factor, steps.weight == nullptr ? 1.0F : weights[i]);
      if (steps.bias != nullptr) x[i] = edges::sum(x[i], biases[i]);
    }
  }
};

/// The angles of a word of rotated columns.
class AngleWord {
 public:
  __device__ __forceinline__ AngleWord() {}
  /// Loads the angles of rotated columns [column, column + 8).
  __device__ __forceinline__ AngleWord(const edges::Rotary& rotary, std::int64_t position, int column,
                                       bool vectors) {
    if (!rotary.holds(position)) {
#pragma unroll
      for (int i = 0; i < kWord; ++i) cos_[i] = sin_[i] = __uint_as_float(0x7FC00000U);
      return;
    }
    const std::int64_t row = position * rotary.stride;
    const int pair = rotary.pair_of(column);
    if (rotary.halves) {
      load<kWord>(rotary, row, pair, vectors);
    } else {
      load<kWord / 2>(rotary, row, pair, vectors);
    }
    if (!rotary.back) return;
#pragma unroll
    for (int i = 0; i < kWord; ++i) sin_[i] = -sin_[i];
  }

  /// `partners`: with pairs by halves, the elements of the partner word.
  __device__ __forceinline__ void rotate(const edges::Rotary& rotary, int column,
                                         const float (&partners)[kWord], float (&x)[kWord]) const {
    float before[kWord];
#pragma unroll
    for (int i = 0; i < kWord; ++i) before[i] = x[i];
#pragma unroll
    for (int i = 0; i < kWord; ++i) {
      x[i] = rotary.halves ? rotary.rotated(column + i, before[i], partners[i], {cos_[i], sin_[i]})
                           : rotary.rotated(column + i, before[i], before[i ^ 1], {cos_[i / 2], sin_[i / 2]});
    }
  }

 private:
  /// Entries [at, at + kCount) of the table.
  template <int kCount>
  __device__ __forceinline__ static void load_run(const edges::Rotary& rotary, std::int64_t at, bool vectors,
                                                  float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      std::uint32_t bits[4];
      if (!vectors) {
#pragma unroll
        for (int j = 0; j < 4; ++j) bits[j] = __float_as_uint(entry(rotary, at + i + j));
      } else if (rotary.bf16_table) {
        const uint2 word = load_8(static_cast<const std::uint16_t*>(rotary.table) + at + i);
        bits[0] = word.x << 16;
        bits[1] = word.x & 0xFFFF0000U;
        bits[2] = word.y << 16;
        bits[3] = word.y & 0xFFFF0000U;
      } else {
        const uint4 word = load_16(static_cast<const float*>(rotary.table) + at + i);
        bits[0] = word.x;
        bits[1] = word.y;
        bits[2] = word.z;
        bits[3] = word.w;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i + j] = __uint_as_float(bits[j]);
    }
  }
  __device__ __forceinline__ static float entry(const edges::Rotary& rotary, std::int64_t at) {
    if (!rotary.bf16_table) return static_cast<const float*>(rotary.table)[at];
    return __uint_as_float(std::uint32_t{static_cast<const std::uint16_t*>(rotary.table)[at]} << 16);
  }

  template <int kPairs>
  __device__ __forceinline__ void load(const edges::Rotary& rotary, std::int64_t row, int pair,
                                       bool vectors) {
    if (!rotary.interleaved) {
      float cos[kPairs], sin[kPairs];
      load_run(rotary, row + pair, vectors, cos);
      load_run(rotary, row + rotary.columns / 2 + pair, vectors, sin);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) cos_[i] = cos[i], sin_[i] = sin[i];
    } else {
      float both[2 * kPairs];
      load_run(rotary, row + 2 * pair, vectors, both);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) cos_[i] = both[2 * i], sin_[i] = both[2 * i + 1];
    }
  }

  float cos_[kWord], sin_[kWord];
};

/// Can a table's rows be read by 16 bytes (bf16: 8)?
inline bool in_table_vectors(const edges::Rotary& rotary) {
  const std::int64_t bytes = rotary.bf16_table ? 2 : 4;
  return reinterpret_cast<std::uintptr_t>(rotary.table) % 16 == 0 && rotary.stride * bytes % 16 == 0;
}
/// ... a norm's weight and bias?
inline bool in_norm_vectors(const TokenSteps& steps) {
  return reinterpret_cast<std::uintptr_t>(steps.weight) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(steps.bias) % 16 == 0;
}

/// Two numbers to 16 bits, the first in the low half. NaN becomes some NaN of the type.
__device__ __forceinline__ std::uint32_t halves_of(float x, float y, bool fp16) {
  return fp16 ? from_floats<__half>(make_float2(x, y)) : from_floats<__nv_bfloat16>(make_float2(x, y));
}

/// To 16 bits and back.
__device__ __forceinline__ void round_word(Dtype dtype, float (&x)[kWord]) {
  const bool fp16 = dtype == Dtype::kF16;
#pragma unroll
  for (int i = 0; i < kWord; i += 2) {
    const std::uint32_t pair = halves_of(x[i], x[i + 1], fp16);
    const float2 both = fp16 ? to_floats<__half>(pair) : to_floats<__nv_bfloat16>(pair);
    x[i] = both.x;
    x[i + 1] = both.y;
  }
}

__device__ __forceinline__ float word_sum(const float (&x)[kWord]) {
  float sum = 0;
#pragma unroll
  for (float y : x) sum = edges::sum(sum, y);
  return sum;
}
__device__ __forceinline__ float word_squares(const float (&x)[kWord]) {
  float sum = 0;
#pragma unroll
  for (float y : x) sum = edges::sum(sum, edges::product(y, y));
  return sum;
}

/// The largest magnitude of a word's finite elements, and of `lanes` neighbouring lanes' words.
__device__ __forceinline__ float word_largest(const float (&x)[kWord]) {
  float largest = 0;
#pragma unroll
  for (float y : x) largest = e4m3::is_finite(y) ? fmaxf(largest, fabsf(y)) : largest;
  return largest;
}
__device__ __forceinline__ float group_largest(float largest, int lanes) {
  for (int apart = 1; apart < lanes; apart *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, apart));
  }
  return largest;
}
/// Are all of a word's elements finite?
__device__ __forceinline__ bool word_finite(const float (&x)[kWord]) {
  bool finite = true;
#pragma unroll
  for (float y : x) finite = finite && e4m3::is_finite(y);
  return finite;
}

/// e4m3 codes of `x`, the scaled `source`; codes of sources that are not finite are NaN, since the
/// instruction makes infinity 448.
__device__ __forceinline__ uint2 e4m3_word(const float (&x)[kWord], const float (&source)[kWord]) {
  std::uint32_t codes[2] = {};
#pragma unroll
  for (int i = 0; i < kWord; i += 2) {
    const std::uint32_t pair =
        __nv_cvt_float2_to_fp8x2(make_float2(x[i], x[i + 1]), __NV_SATFINITE, __NV_E4M3);
    codes[i / 4] |= pair << 8 * (i % 4);
  }
  if (!word_finite(source)) {
#pragma unroll
    for (int i = 0; i < kWord; ++i) {
      const int shift = 8 * (i % 4);
      if (!e4m3::is_finite(source[i])) {
        codes[i / 4] = (codes[i / 4] & ~(0xFFU << shift)) | std::uint32_t{e4m3::kNan} << shift;
      }
    }
  }
  return make_uint2(codes[0], codes[1]);
}

/// e4m3 codes of x / 2^exponent.
__device__ __forceinline__ uint2 e4m3_word(const float (&x)[kWord], int exponent) {
  const float inverse = e4m3::power_of_two(-exponent);
  float scaled[kWord];
#pragma unroll
  for (int i = 0; i < kWord; ++i) scaled[i] = edges::product(x[i], inverse);
  return e4m3_word(scaled, x);
}

__device__ __forceinline__ void store_codes(std::uint8_t* to, uint2 codes, bool vectors) {
  if (vectors) {
    *reinterpret_cast<uint2*>(to) = codes;
    return;
  }
#pragma unroll
  for (int i = 0; i < kWord; ++i) {
    to[i] = static_cast<std::uint8_t>((i < 4 ? codes.x : codes.y) >> 8 * (i % 4));
  }
}

/// A slot's page and its place in the page. Most slots have 31 bits.
struct SlotPlace {
  std::int64_t page;
  std::int64_t offset;

  __device__ __forceinline__ SlotPlace(std::int64_t slot, const Divisor& page_size) {
    if (slot >> 31 == 0) {
      page = page_size.quotient(static_cast<int>(slot));
      offset = page_size.remainder(static_cast<int>(slot));
    } else {
      page = slot / page_size.value;
      offset = slot % page_size.value;
    }
  }
};

}  // namespace flashlatent::cuda::token_edges
