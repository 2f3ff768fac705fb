// Converts rows of a KV cache from one format to another, with SIMD and run-time dispatch. Every target
// writes the same bits, those of core/e4m3.h and core/element.h; only the payload of a NaN may differ.
#pragma once

#include <cstdint>

#include "flashlatent/tensor.h"

namespace flashlatent::cpu {

/// An fp8_656 token to 576 elements of bf16 or fp16: e4m3 * scale, rounded, then the RoPE part. With `rope`
/// false to 512 elements; the RoPE part is not read.
void dequantise_656(const std::uint8_t* token, bool rope, Dtype dtype, std::uint16_t* row);

/// An fp8_584 token, whose data and scales are apart, to 512 elements.
void dequantise_584(const std::uint8_t* data, const std::uint8_t* scales, Dtype dtype, std::uint16_t* row);

/// 512 and 64 elements of bf16 or fp16 to an fp8_656 token.
void quantise_656(const std::uint16_t* latent, const std::uint16_t* rope, Dtype dtype, std::uint8_t* token);

/// 448 and 64 elements to an fp8_584 token; the byte behind the scales becomes 0.
void quantise_584(const std::uint16_t* nope, const std::uint16_t* rope, Dtype dtype, std::uint8_t* data,
                  std::uint8_t* scales);

/// `count` e4m3 elements times a scale, and back, as core/scaled_e4m3.h does.
void dequantise_e4m3(const std::uint8_t* codes, int count, float scale, Dtype dtype, std::uint16_t* row);
void quantise_e4m3(const std::uint16_t* row, Dtype dtype, int count, float scale, std::uint8_t* codes);

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
