// A compiled shape as a row of data.
#pragma once

#include "cuda/common/atoms_map.h"
#include "cuda/e4m3/instances.h"
#include "cuda/e4m3/kernel.cuh"

namespace flashlatent::mla_e4m3 {

template <int kQkDim, int kRows, bool kBoxes>
constexpr cuda::DenseInstance instance() {
  using Shape = Config<kQkDim, kRows, kBoxes>;
  return {.key = key(kQkDim, kRows, kBoxes ? cuda::Loading::kBoxes : cuda::Loading::kTokens),
          .kernel = cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>(),
          .boxes = {.kv = cuda::kv_atoms_map, .query = nullptr},
          .merges = true};
}

template <int kQkDim>
constexpr Instances instances() {
  return {{instance<kQkDim, kFewRows, true>(), instance<kQkDim, kFewRows, false>(),
           instance<kQkDim, kTileRows, true>(), instance<kQkDim, kTileRows, false>()}};
}

}  // namespace flashlatent::mla_e4m3
