// Index keys, for host and device: where the bytes of a page are, what they mean, and how writers choose
// them. A page of B keys has the data of all keys, then the 4 bytes of scales of each:
//
//   fp8_132    bytes 128 t to 128 t + 127   128 x e4m3; byte 128 B + 4 t: fp32, the key's scale
//   mxfp4_68   bytes 64 t to 64 t + 63      128 x e2m1, element 2 i in the low nibble of byte i;
//              bytes 64 B + 4 t to 64 B + 4 t + 3  4 x ue8m0, one for 32 elements: 2^(byte - 127), 255 is NaN
#pragma once

#include "core/e4m3.h"
#include "flashlatent/index_topk.h"

namespace flashlatent::index_keys {

inline constexpr int kDim = 128;
inline constexpr int kGroup = 32;  // elements that share a ue8m0 scale
inline constexpr int kGroups = kDim / kGroup;
inline constexpr int kScaleBytes = 4;
inline constexpr int kPageAlignment = 16;  // a page stride is a multiple of this many bytes

FLASHLATENT_HOST_DEVICE constexpr int data_bytes(IndexFormat format) {
  return format == IndexFormat::kFp8_132 ? kDim : kDim / 2;
}

/// Bytes from the page's begin to the data and to the scales of a key.
FLASHLATENT_HOST_DEVICE std::int64_t data_offset(IndexFormat format, std::int64_t key) {
  return key * data_bytes(format);
}
FLASHLATENT_HOST_DEVICE std::int64_t scale_offset(IndexFormat format, std::int64_t page_size,
                                                  std::int64_t key) {
  return page_size * data_bytes(format) + key * kScaleBytes;
}
FLASHLATENT_HOST_DEVICE std::int64_t page_bytes(IndexFormat format, std::int64_t page_size) {
  return page_size * (data_bytes(format) + kScaleBytes);
}

/// The exponent of the writer's mxfp4_68 scale: ceil(log2(max(amax, 6 * 2^-126) / 6)), where 6 is 1.5 * 2^2,
/// so that a larger fraction carries into the exponent.
FLASHLATENT_HOST_DEVICE int mxfp4_exponent(float amax) {
  const float clamped = amax > 0x1.8p-124F ? amax : 0x1.8p-124F;
  return static_cast<int>((e4m3::bits_of(clamped) + (0x7FFFFFU - 0x400000U)) >> 23) - 127 - 2;
}

/// x / 2^exponent as e4m3; `exponent`: -126 to 126.
FLASHLATENT_HOST_DEVICE std::uint8_t encode_fp8(float x, int exponent) {
  return e4m3::encode(x * e4m3::power_of_two(-exponent));
}

}  // namespace flashlatent::index_keys
