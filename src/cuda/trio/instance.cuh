// What a file of instances includes.
#pragma once

#include "cuda/trio/instances.h"
#include "cuda/trio/kernel.cuh"

namespace flashlatent::trio {

static_assert(kStageTokens == kPageTokens, "a stage is one box");

template <class Element, bool kMerges, bool kHasShare = false>
constexpr cuda::DenseInstance instance(Dtype dtype) {
  using Config = trio::Config<Element, 576, 512, kMerges, kHasShare>;
  return {.key = {.dtype = dtype,
                  .qk_dim = Config::kQkDim,
                  .v_dim = Config::kVDim,
                  .tile_rows = parts::kTileRows,
                  .loading = cuda::Loading::kBoxes,
                  .merges = kMerges},
          .kernel = cuda::compiled_kernel<kernel<Config>, Config, SharedMemory<Config>>(),
          .boxes = {.kv = cuda::kv_chunks_map,
                    .query = cuda::query_chunks_map,
                    .most_tokens = kStageTokens,
                    .query_rows = kStageTokens}};
}

template <bool kMerges, bool kHasShare = false>
constexpr Instances instances() {
  return {{instance<__nv_bfloat16, kMerges, kHasShare>(Dtype::kBF16),
           instance<__half, kMerges, kHasShare>(Dtype::kF16)}};
}

}  // namespace flashlatent::trio
