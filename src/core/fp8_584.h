// The fp8_584 page (DeepSeek V4), for host and device: where its bytes are, and what its numbers mean. A
// page of B tokens has
//
//   bytes 576 t to 576 t + 447          448 x e4m3: the NoPE part of token t, in 7 groups of 64
//   bytes 576 t + 448 to 576 t + 575     64 x bf16: its RoPE part
//   bytes 576 B + 8 t to 576 B + 8 t + 6  7 x ue8m0: the groups' scales, 2^(byte - 127); then a byte of
//   padding
//
// Pages lie at least 584 B bytes apart, rounded up to a multiple of 576. Key and value are both the whole row
// of 512 elements. An element is e4m3 * its group's scale.
#pragma once

#include "core/e4m3.h"

namespace flashlatent::fp8_584 {

using namespace e4m3;  // the type of its elements, and the writer's scales

inline constexpr int kNopeDim = 448;
inline constexpr int kRopeDim = 64;
inline constexpr int kDim = kNopeDim + kRopeDim;
inline constexpr int kGroup = 64;  // elements that share a scale
inline constexpr int kGroups = kNopeDim / kGroup;
inline constexpr int kRopeOffset = kNopeDim;
inline constexpr int kDataBytes = kRopeOffset + kRopeDim * 2;  // from one token's data to the next one's
inline constexpr int kScaleBytes = 8;                          // from one token's scales to the next one's
inline constexpr int kTokenBytes = kDataBytes + kScaleBytes;
inline constexpr int kPageAlignment = 16;  // a page stride is a multiple of this many bytes
static_assert(kDataBytes == 576 && kTokenBytes == 584);

/// Bytes from the page's begin to the data and to the scales of a token.
FLASHLATENT_FP8_FUNCTION std::int64_t data_offset(std::int64_t token) {
  return token * kDataBytes;
}
FLASHLATENT_FP8_FUNCTION std::int64_t scale_offset(std::int64_t page_size, std::int64_t token) {
  return page_size * kDataBytes + token * kScaleBytes;
}

/// The least bytes from one page to the next.
FLASHLATENT_FP8_FUNCTION std::int64_t least_page_stride(std::int64_t page_size) {
  return (page_size * kTokenBytes + kDataBytes - 1) / kDataBytes * kDataBytes;
}

/// The value of a scale byte: 2^(byte - 127); 255 is NaN. Byte 0 is 2^-127, subnormal in fp32.
FLASHLATENT_FP8_FUNCTION float scale_value(std::uint8_t byte) {
  if (byte == 0xFF) return float_of(0x7FC00000U);
  return float_of(byte == 0 ? 0x00400000U : std::uint32_t{byte} << 23);
}

/// The byte of the scale 2^exponent; `exponent`: -127 to 127.
FLASHLATENT_FP8_FUNCTION std::uint8_t scale_byte(int exponent) {
  return static_cast<std::uint8_t>(exponent + 127);
}

}  // namespace flashlatent::fp8_584
