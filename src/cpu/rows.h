// Converts rows of a KV cache from one format to another, with SIMD and run-time dispatch. Every target
// writes the same bits, those of core/e4m3.h and core/element.h; only the payload of a NaN may differ.
#pragma once

#include <cstdint>

#include "core/formats/format.h"
#include "flashlatent/tensor.h"

namespace flashlatent::cpu {

/// The bytes of a token in a format that has bytes of its own.
struct ConstTokenBytes {
  const std::uint8_t* data;
  const std::uint8_t* scales;
};
struct TokenBytes {
  std::uint8_t* data;
  std::uint8_t* scales;

  // NOLINTNEXTLINE(google-explicit-constructor): adds const
  operator ConstTokenBytes() const { return {data, scales}; }
};

/// A token to elements of bf16 or fp16: element * scale, rounded, then the RoPE part that is bf16, if the
/// format has one and `rope` is set.
void dequantise_token(const LatentFormat& format, ConstTokenBytes token, bool rope, Dtype dtype,
                      std::uint16_t* row);
/// The same to fp32.
void dequantise_token(const LatentFormat& format, ConstTokenBytes token, float* row);

/// Elements of bf16 or fp16 to a token; those behind `scaled`, which are not quantised, from `rope`. Scales
/// that are powers of two have `least_exponent` or more. Bytes of padding become 0.
void quantise_token(const LatentFormat& format, int least_exponent, const std::uint16_t* scaled,
                    const std::uint16_t* rope, Dtype dtype, TokenBytes token);
/// The same from fp32.
void quantise_token(const LatentFormat& format, int least_exponent, const float* row, TokenBytes token);

/// `count` e4m3 elements times a scale, and back, as core/scaled_e4m3.h does.
void dequantise_e4m3(const std::uint8_t* codes, int count, float scale, Dtype dtype, std::uint16_t* row);
void quantise_e4m3(const std::uint16_t* row, Dtype dtype, int count, float scale, std::uint8_t* codes);
/// The same with elements of fp32.
void dequantise_e4m3(const std::uint8_t* codes, int count, float scale, float* row);
void quantise_e4m3(const float* row, int count, float scale, std::uint8_t* codes);

/// `count` elements of bf16 or fp16 to either dtype.
void convert_row(const std::uint16_t* from, Dtype from_dtype, int count, std::uint16_t* to, Dtype to_dtype);

/// Rounds a query row of bf16, `first_count` elements and `rope_count` more, to e4m3 numbers times 2^n, and
/// writes those numbers without the power of two, as bf16. Returns n = e4m3_latent::query_exponent(). Both
/// counts are multiples of 64.
int round_query(const std::uint16_t* first, int first_count, const std::uint16_t* rope, int rope_count,
                std::uint16_t* to);

/// `count` e4m3 elements to bf16 or fp16, which have all values of e4m3.
void expand_e4m3(const std::uint8_t* from, int count, Dtype dtype, std::uint16_t* to);

}  // namespace flashlatent::cpu
