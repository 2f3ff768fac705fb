// Rows of a KV cache from one format to another, in SIMD with run-time dispatch. Every target writes the same
// bits, those of core/e4m3.h and core/element.h; only a NaN's payload may differ.
#pragma once

#include <cstdint>

#include "flashlatent/tensor.h"

namespace flashlatent::cpu {

/// An fp8_656 token as 576 elements of bf16 or fp16, or without `rope`, which is not read then, as 512:
/// e4m3 * scale, rounded; the RoPE part as it is, or rounded.
void dequantise_656(const std::uint8_t* token, bool rope, Dtype dtype, std::uint16_t* row);

/// An fp8_584 token, whose data and scales are apart, as 512 elements.
void dequantise_584(const std::uint8_t* data, const std::uint8_t* scales, Dtype dtype, std::uint16_t* row);

/// 512 and 64 elements of bf16 or fp16 as an fp8_656 token.
void quantise_656(const std::uint16_t* latent, const std::uint16_t* rope, Dtype dtype, std::uint8_t* token);

/// 448 and 64 elements as an fp8_584 token; the byte behind the scales becomes 0.
void quantise_584(const std::uint16_t* nope, const std::uint16_t* rope, Dtype dtype, std::uint8_t* data,
                  std::uint8_t* scales);

/// `count` e4m3 elements times a scale, and back: as core/scaled_e4m3.h does.
void dequantise_e4m3(const std::uint8_t* codes, int count, float scale, Dtype dtype, std::uint16_t* row);
void quantise_e4m3(const std::uint16_t* row, Dtype dtype, int count, float scale, std::uint8_t* codes);

/// `count` elements of bf16 or fp16 in the other dtype of the two, or copied.
void convert_row(const std::uint16_t* from, Dtype from_dtype, int count, std::uint16_t* to, Dtype to_dtype);

/// `count` elements of bf16 as e4m3 elements are, expanded to bf16, times 2^n; `n` is
/// e4m3_latent::query_exponent(). `count` is a multiple of 64.
int round_query(const std::uint16_t* from, int count, std::uint16_t* to);

/// `count` e4m3 elements as bf16 or fp16, both of which have all their values.
void expand_e4m3(const std::uint8_t* from, int count, Dtype dtype, std::uint16_t* to);

}  // namespace flashlatent::cpu
