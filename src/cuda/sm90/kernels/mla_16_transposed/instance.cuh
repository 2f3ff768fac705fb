// Included by the files of instances.
#pragma once

#include "cuda/sm90/kernels/mla_16_transposed/instances.h"
#include "cuda/sm90/kernels/mla_16_transposed/kernel.cuh"
#include "cuda/sm90/load/fp8_staged_loader.cuh"
#include "cuda/sm90/load/listed_bulk_loader.cuh"
#include "cuda/sm90/load/listed_staged_loader.cuh"

namespace flashlatent::mla_16_transposed {

template <class Element, int kQkDim, int kVDim, int kRows, class Loader, Told kTold = Told::kByPlan>
constexpr cuda::DenseInstance instance(Dtype dtype, cuda::Loading loading) {
  using Shape = Config<Element, kQkDim, kVDim, kRows, Loader, kTold>;
  return {{dtype, kQkDim, kVDim, kRows, loading, 1, 1, Shape::kTurns},
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>()};
}

/// From an FP8 cache.
template <int kQkDim, class Loader, Told kTold = Told::kByPlan>
constexpr cuda::DenseInstance fp8_instance(Dtype dtype, cuda::Loading loading) {
  return instance<__nv_bfloat16, kQkDim, 512, kTileRows, Loader, kTold>(dtype, loading);
}

// Short names of loaders for files of instances.
using cuda::Loading;
using ListedFp8_656 = sm90::ListedBulkLoader<sm90::Fp8_656Rows, 1>;
using ListedFp8_584 = sm90::ListedBulkLoader<sm90::Fp8_584Rows, 2>;
using ListedRecords = sm90::ListedStagedLoader<sm90::RecordRows, 1, 5>;
using ListedE4m3 = sm90::ListedBulkLoader<sm90::E4m3Rows, 1>;
using ListedE4m3Latent = sm90::ListedBulkLoader<sm90::E4m3LatentRows, 2>;

}  // namespace flashlatent::mla_16_transposed
