// What a file of instances includes.
#pragma once

#include "cuda/mla_64_pingpong/instances.h"
#include "cuda/mla_64_pingpong/kernel.cuh"
#include "cuda/parts/tma_loader.cuh"
#include "cuda/parts/token_loader.cuh"

namespace flashlatent::mla_64_pingpong {

template <class Element, int kQkDim, int kVDim, int kCluster, class Loader, int kTeam = 1,
          bool kHasShare = false, bool kTurns = false>
constexpr cuda::DenseInstance instance(Dtype dtype, cuda::Loading loading) {
  using Shape = Config<Element, kQkDim, kVDim, kCluster, Loader, kTeam, kHasShare, kTurns>;
  return {{dtype, kQkDim, kVDim, kTileRows, loading, kCluster, kTeam, kTurns},
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>(),
          {},
          Shape::kMerges};
}

/// Of a share of one item, by lists.
template <class Element, int kCluster, class Loader>
constexpr cuda::DenseInstance listed_share_instance(Dtype dtype, cuda::Loading loading) {
  return instance<Element, 512, 512, kCluster, Loader, 1, true>(dtype, loading);
}

/// Of sparse prefill.
template <class Element, int kQkDim, int kCluster, class Loader>
constexpr cuda::DenseInstance turns_instance(Dtype dtype, cuda::Loading loading) {
  return instance<Element, kQkDim, 512, kCluster, Loader, 1, false, true>(dtype, loading);
}

/// A team's blocks come by boxes only.
template <class Element, int kTeam>
constexpr cuda::DenseInstance team_instance(Dtype dtype) {
  return instance<Element, 576, 512, 1, parts::TmaLoader, kTeam>(dtype, cuda::Loading::kBoxes);
}

/// Of one shape.
template <int kQkDim, int kVDim>
constexpr ShapeInstances shape_instances() {
  using Bf16 = __nv_bfloat16;
  using Fp16 = __half;
  return {{instance<Bf16, kQkDim, kVDim, 1, parts::TmaLoader>(Dtype::kBF16, cuda::Loading::kBoxes),
           instance<Bf16, kQkDim, kVDim, 1, parts::TokenLoader>(Dtype::kBF16, cuda::Loading::kTokens),
           instance<Fp16, kQkDim, kVDim, 1, parts::TmaLoader>(Dtype::kF16, cuda::Loading::kBoxes),
           instance<Fp16, kQkDim, kVDim, 1, parts::TokenLoader>(Dtype::kF16, cuda::Loading::kTokens)}};
}

}  // namespace flashlatent::mla_64_pingpong
