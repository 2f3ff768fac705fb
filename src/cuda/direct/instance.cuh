// What a file of instances includes.
#pragma once

#include "cuda/direct/instances.h"
#include "cuda/direct/kernel.cuh"

namespace flashlatent::direct {

template <int kTeam, bool kMerges, int kRows>
constexpr cuda::DenseInstance instance() {
  using Shape = Config<kTeam, kMerges, kRows>;
  return {{Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, Shape::kRows, cuda::Loading::kFp8, 1, kTeam,
           kMerges},
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>()};
}

template <bool kMerges>
constexpr Instances instances() {
  return {{instance<1, kMerges, 8>(), instance<1, kMerges, 16>(), instance<1, kMerges, 32>()}};
}

}  // namespace flashlatent::direct
