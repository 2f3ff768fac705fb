// The fp8_656 token, for host and device: where its bytes are, and what its numbers mean.
//
//   bytes   0 to 511   512 x e4m3: the latent (NoPE) part, in 4 groups of 128
//   bytes 512 to 527     4 x fp32: the groups' scales
//   bytes 528 to 655    64 x bf16: the RoPE part
//
// An element is e4m3 * its group's scale. Without RoPE (qk_dim 512) the last 128 bytes are never read.
#pragma once

#include "core/e4m3.h"
#include "core/formats/format.h"

namespace flashlatent {

namespace fp8_656 {

inline constexpr int kLatentDim = 512;
inline constexpr int kRopeDim = 64;
inline constexpr int kDim = kLatentDim + kRopeDim;
inline constexpr int kGroup = 128;  // elements that share a scale
inline constexpr int kGroups = kLatentDim / kGroup;
inline constexpr int kScaleOffset = kLatentDim;
inline constexpr int kRopeOffset = kScaleOffset + kGroups * 4;
inline constexpr int kTokenBytes = kRopeOffset + kRopeDim * 2;
static_assert(kTokenBytes == 656);

using namespace e4m3;  // the type of its elements and scales

}  // namespace fp8_656

inline constexpr LatentFormat kFp8_656Format = {.format = KvFormat::kFp8_656,
                                                .name = "fp8_656",
                                                .dim = fp8_656::kDim,
                                                .dim_without_rope = fp8_656::kLatentDim,
                                                .rope_dim = fp8_656::kRopeDim,
                                                .elements = Elements::kE4m3,
                                                .scales = ScaleKind::kFp32,
                                                .rule = ScaleFloor::kScale,
                                                .group = fp8_656::kGroup,
                                                .rope_offset = fp8_656::kRopeOffset,
                                                .data_bytes = fp8_656::kTokenBytes,
                                                .scale_offset = fp8_656::kScaleOffset,
                                                .scale_bytes = fp8_656::kGroups * 4};

}  // namespace flashlatent
