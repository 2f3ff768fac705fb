// The mxfp8_528 token (DeepSeek V4.1), for host and device: 512 x e4m3, RoPE part included, in 16 groups of
// 32, and 16 x ue8m0, the groups' scales, 2^(byte - 127). An element is e4m3 * its group's scale. Two
// arrangements of a page of B tokens exist:
//
//   token   bytes 528 t to 528 t + 511: token t, then its 16 scale bytes
//   page    bytes 512 t to 512 t + 511: token t; bytes 512 B + 16 t to 512 B + 16 t + 15: its scales
#pragma once

#include "core/formats/format.h"
#include "core/ue8m0.h"

namespace flashlatent {

namespace mxfp8_528 {

using namespace e4m3;   // the type of its elements
using namespace ue8m0;  // ... and of its scales

inline constexpr int kDim = 512;
inline constexpr int kGroup = 32;
inline constexpr int kGroups = kDim / kGroup;
inline constexpr int kScaleBytes = kGroups;
inline constexpr int kTokenBytes = kDim + kScaleBytes;
static_assert(kTokenBytes == 528);

}  // namespace mxfp8_528

inline constexpr LatentFormat kMxfp8_528ByToken = {.format = KvFormat::kMxfp8_528,
                                                   .name = "mxfp8_528",
                                                   .dim = mxfp8_528::kDim,
                                                   .all_value = true,
                                                   .elements = Elements::kE4m3,
                                                   .scales = ScaleKind::kUe8m0,
                                                   .rule = ScaleFloor::kAmax,
                                                   .group = mxfp8_528::kGroup,
                                                   .data_bytes = mxfp8_528::kTokenBytes,
                                                   .scale_offset = mxfp8_528::kDim,
                                                   .scale_bytes = mxfp8_528::kScaleBytes};
inline constexpr LatentFormat kMxfp8_528ByPage = by_page(kMxfp8_528ByToken);

}  // namespace flashlatent
