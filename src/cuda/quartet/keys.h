// What the quartet kernel is compiled for, as data.
#pragma once

#include "core/fp8_656.h"
#include "cuda/common/instance_key.h"

namespace flashlatent::quartet {

inline constexpr int kTileRows = 64;

inline constexpr std::array<cuda::InstanceKey, 1> kKeys = {
    {{Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, kTileRows, cuda::Loading::kFp8}}};

}  // namespace flashlatent::quartet
