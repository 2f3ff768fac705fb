// The fp8_528 token: an fp8_656 token without its RoPE part, for host and device. All of it is key and value.
#pragma once

#include "core/formats/fp8_656.h"

namespace flashlatent {

namespace fp8_528 {

inline constexpr int kDim = fp8_656::kLatentDim;
inline constexpr int kTokenBytes = fp8_656::kRopeOffset;
static_assert(kTokenBytes == 528);

}  // namespace fp8_528

inline constexpr LatentFormat kFp8_528Format = {.format = KvFormat::kFp8_528,
                                                .name = "fp8_528",
                                                .dim = fp8_528::kDim,
                                                .all_value = true,
                                                .elements = Elements::kE4m3,
                                                .scales = ScaleKind::kFp32,
                                                .rule = ScaleFloor::kScale,
                                                .group = fp8_656::kGroup,
                                                .data_bytes = fp8_528::kTokenBytes,
                                                .scale_offset = fp8_656::kScaleOffset,
                                                .scale_bytes = fp8_656::kGroups * 4};

}  // namespace flashlatent
