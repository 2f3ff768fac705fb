// Included by the files of instances.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/instances.h"
#include "cuda/sm90/kernels/mla_64_pingpong/kernel.cuh"
#include "cuda/sm90/load/fp8_register_loader.cuh"
#include "cuda/sm90/load/listed_staged_loader.cuh"
#include "cuda/sm90/load/tma_loader.cuh"
#include "cuda/sm90/load/token_loader.cuh"

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

/// An instance for CTAs with a share of one item.
template <class Element, int kQkDim, int kCluster, class Loader>
constexpr cuda::DenseInstance share_instance(Dtype dtype, cuda::Loading loading) {
  return instance<Element, kQkDim, 512, kCluster, Loader, 1, true>(dtype, loading);
}

/// An instance for sparse prefill.
template <class Element, int kQkDim, int kCluster, class Loader>
constexpr cuda::DenseInstance turns_instance(Dtype dtype, cuda::Loading loading) {
  return instance<Element, kQkDim, 512, kCluster, Loader, 1, false, true>(dtype, loading);
}

// Short names of loaders for files of instances.
using cuda::Loading;
using Bf16 = __nv_bfloat16;
using Fp16 = __half;
using sm90::TmaLoader, sm90::TokenLoader;
using ListedTokens = sm90::TokenLoaderOf<true>;
template <int kCluster>
using Fp8_656FromRegisters = sm90::Fp8RegisterLoader<kCluster>;
using ListedFp8_656 = sm90::ListedStagedLoader<sm90::Fp8_656LatentRows, 1, 5>;
template <int kCluster>
using ListedFp8_584 = sm90::ListedStagedLoader<sm90::Fp8_584Rows, kCluster, kCluster == 2 ? 8 : 5>;
template <int kCluster>
using ListedRecords = sm90::ListedStagedLoader<sm90::RecordRows, kCluster, kCluster == 2 ? 7 : 5>;
template <int kCluster>
using E4m3FromRegisters = sm90::Fp8RegisterLoader<kCluster, sm90::E4m3Rows>;
using ListedE4m3 = sm90::ListedStagedLoader<sm90::E4m3LatentRows, 1, 5>;

}  // namespace flashlatent::mla_64_pingpong
