// Included by the files of instances.
#pragma once

#include <type_traits>

#include "cuda/sm90/kernels/mla_16/instances.h"
#include "cuda/sm90/kernels/mla_16/kernel.cuh"
#include "cuda/sm90/load/block_loader.cuh"
#include "cuda/sm90/load/tma_loader.cuh"
#include "cuda/sm90/load/token_loader.cuh"

namespace flashlatent::mla_16 {

template <class Element, int kQkDim, int kVDim, class Loader, int kTeam, bool kTurns = false>
constexpr cuda::DenseInstance instance(Dtype dtype, cuda::Loading loading) {
  using Shape = Config<Element, kQkDim, kVDim, Loader, kTeam, kTurns>;
  static_assert(Shape::kRows == kTileRows);
  return {{dtype, kQkDim, kVDim, kTileRows, loading, 1, kTeam, kTurns},
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>(),
          {.kv = Loader::kWholeBlocks ? cuda::kv_block_map : cuda::kv_tensor_map}};
}

template <int kQkDim, int kVDim, int kTeam = 1>
constexpr auto instances() {
  using Bf16 = __nv_bfloat16;
  using Fp16 = __half;
  using Boxes = std::conditional_t<kTeam == 1, sm90::BlockLoader, sm90::TmaLoader>;
  using Tokens = sm90::TokenLoader;
  return std::array{instance<Bf16, kQkDim, kVDim, Boxes, kTeam>(Dtype::kBF16, cuda::Loading::kBoxes),
                    instance<Bf16, kQkDim, kVDim, Tokens, kTeam>(Dtype::kBF16, cuda::Loading::kTokens),
                    instance<Fp16, kQkDim, kVDim, Boxes, kTeam>(Dtype::kF16, cuda::Loading::kBoxes),
                    instance<Fp16, kQkDim, kVDim, Tokens, kTeam>(Dtype::kF16, cuda::Loading::kTokens)};
}

}  // namespace flashlatent::mla_16
