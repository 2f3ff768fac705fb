// What a file of instances includes.
#pragma once

#include "cuda/mla_16_transposed/instances.h"
#include "cuda/mla_16_transposed/kernel.cuh"
#include "cuda/parts/tma_loader.cuh"
#include "cuda/parts/token_loader.cuh"

namespace flashlatent::mla_16_transposed {

template <class Element, int kQkDim, int kVDim, int kRows, class Loader, Told kTold = Told::kByPlan>
constexpr cuda::DenseInstance instance(Dtype dtype, cuda::Loading loading) {
  using Shape = Config<Element, kQkDim, kVDim, kRows, Loader, kTold>;
  return {{dtype, kQkDim, kVDim, kRows, loading, 1, 1, Shape::kTurns},
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>()};
}

constexpr Instances instances() {
  using Bf16 = __nv_bfloat16;
  using Fp16 = __half;
  constexpr int kRows = kLowTileRows;
  return {{instance<Bf16, 576, 512, kRows, parts::TmaLoader>(Dtype::kBF16, cuda::Loading::kBoxes),
           instance<Bf16, 576, 512, kRows, parts::TokenLoader>(Dtype::kBF16, cuda::Loading::kTokens),
           instance<Fp16, 576, 512, kRows, parts::TmaLoader>(Dtype::kF16, cuda::Loading::kBoxes),
           instance<Fp16, 576, 512, kRows, parts::TokenLoader>(Dtype::kF16, cuda::Loading::kTokens)}};
}

}  // namespace flashlatent::mla_16_transposed
