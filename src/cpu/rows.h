// Rows of a KV cache from one format to another, in SIMD with run-time dispatch. Every target writes the same
// bits, those of core/fp8_656.h and core/element.h; only a NaN's payload may differ.
#pragma once

#include <cstdint>

#include "flashlatent/tensor.h"

namespace flashlatent::cpu {

/// An fp8_656 token as 576 elements of bf16 or fp16: e4m3 * scale, rounded; the RoPE part as it is, or
/// rounded.
void dequantise_row(const std::uint8_t* token, Dtype dtype, std::uint16_t* row);

/// 512 and 64 elements of bf16 or fp16 as an fp8_656 token.
void quantise_row(const std::uint16_t* latent, const std::uint16_t* rope, Dtype dtype, std::uint8_t* token);

/// `count` elements of bf16 or fp16 in the other dtype of the two, or copied.
void convert_row(const std::uint16_t* from, Dtype from_dtype, int count, std::uint16_t* to, Dtype to_dtype);

/// `count` e4m3 elements as bf16 or fp16, both of which have all their values.
void expand_e4m3(const std::uint8_t* from, int count, Dtype dtype, std::uint16_t* to);

}  // namespace flashlatent::cpu
