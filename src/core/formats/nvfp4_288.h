// The nvfp4_288 token (DeepSeek V4.1), for host and device: 512 x e2m1 in 256 bytes, RoPE part included, in
// 32 groups of 16, and 32 x e4m3, the groups' scales. An element is e2m1 * its group's scale. Two
// arrangements of a page of B tokens exist:
//
//   token   bytes 288 t to 288 t + 255: token t, then its 32 scale bytes
//   page    bytes 256 t to 256 t + 255: token t; bytes 256 B + 32 t to 256 B + 32 t + 31: its scales
#pragma once

#include "core/e2m1.h"
#include "core/formats/format.h"

namespace flashlatent {

namespace nvfp4_288 {

using namespace e2m1;  // the type of its elements

inline constexpr int kDim = 512;
inline constexpr int kGroup = 16;
inline constexpr int kGroups = kDim / kGroup;
inline constexpr int kCodeBytes = kDim / 2;
inline constexpr int kScaleBytes = kGroups;
inline constexpr int kTokenBytes = kCodeBytes + kScaleBytes;
static_assert(kTokenBytes == 288);

}  // namespace nvfp4_288

inline constexpr LatentFormat kNvfp4_288ByToken = {.format = KvFormat::kNvfp4_288,
                                                   .name = "nvfp4_288",
                                                   .dim = nvfp4_288::kDim,
                                                   .all_value = true,
                                                   .elements = Elements::kE2m1,
                                                   .scales = ScaleKind::kE4m3,
                                                   .group = nvfp4_288::kGroup,
                                                   .data_bytes = nvfp4_288::kTokenBytes,
                                                   .scale_offset = nvfp4_288::kCodeBytes,
                                                   .scale_bytes = nvfp4_288::kScaleBytes};
inline constexpr LatentFormat kNvfp4_288ByPage = by_page(kNvfp4_288ByToken);

}  // namespace flashlatent
