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

#include "core/formats/format.h"
#include "core/ue8m0.h"

namespace flashlatent {

namespace fp8_584 {

using namespace e4m3;   // the type of its elements
using namespace ue8m0;  // ... and of its scales

inline constexpr int kNopeDim = 448;
inline constexpr int kRopeDim = 64;
inline constexpr int kDim = kNopeDim + kRopeDim;
inline constexpr int kGroup = 64;  // elements that share a scale
inline constexpr int kGroups = kNopeDim / kGroup;
inline constexpr int kRopeOffset = kNopeDim;
inline constexpr int kDataBytes = kRopeOffset + kRopeDim * 2;  // from one token's data to the next one's
inline constexpr int kScaleBytes = 8;                          // from one token's scales to the next one's
inline constexpr int kTokenBytes = kDataBytes + kScaleBytes;
static_assert(kDataBytes == 576 && kTokenBytes == 584);

/// Bytes from the page's begin to the data and to the scales of a token.
FLASHLATENT_HOST_DEVICE std::int64_t data_offset(std::int64_t token) {
  return token * kDataBytes;
}
FLASHLATENT_HOST_DEVICE std::int64_t scale_offset(std::int64_t page_size, std::int64_t token) {
  return page_size * kDataBytes + token * kScaleBytes;
}

}  // namespace fp8_584

inline constexpr LatentFormat kFp8_584Format = {.format = KvFormat::kFp8_584,
                                                .name = "fp8_584",
                                                .dim = fp8_584::kDim,
                                                .rope_dim = fp8_584::kRopeDim,
                                                .all_value = true,
                                                .elements = Elements::kE4m3,
                                                .scales = ScaleKind::kUe8m0,
                                                .rule = ScaleFloor::kAmax,
                                                .group = fp8_584::kGroup,
                                                .rope_offset = fp8_584::kRopeOffset,
                                                .data_bytes = fp8_584::kDataBytes,
                                                .scale_bytes = fp8_584::kScaleBytes,
                                                .place = ScalePlace::kPage,
                                                .page_unit = fp8_584::kDataBytes};

}  // namespace flashlatent
