// Included by the files of instances.
#pragma once

#include "cuda/sm90/kernels/mla_64_roles/instances.h"
#include "cuda/sm90/kernels/mla_64_roles/kernel.cuh"

namespace flashlatent::mla_64_roles {

static_assert(kStageTokens == kPageTokens, "a stage is one box");

template <class Element, bool kHasShare, Supplies kSupplies, bool kTurns = false, int kQkDim = 576>
constexpr cuda::DenseInstance instance(Dtype dtype) {
  using Config = mla_64_roles::Config<Element, kQkDim, 512, kHasShare, kSupplies, kTurns>;
  return {.key = {.dtype = dtype,
                  .qk_dim = Config::kQkDim,
                  .v_dim = Config::kVDim,
                  .tile_rows = sm90::kTileRows,
                  .loading = Config::kByTokens ? cuda::Loading::kTokens : cuda::Loading::kBoxes,
                  .turns = kTurns},
          .kernel = cuda::compiled_kernel<kernel<Config>, Config, SharedMemory<Config>>(),
          .boxes = {.kv = Config::kByTokens ? cuda::kv_tensor_map : cuda::kv_chunks_map,
                    .query = cuda::query_chunks_map,
                    .most_tokens = kStageTokens,
                    .query_rows = kStageTokens},
          .merges = Config::kMerges};
}

}  // namespace flashlatent::mla_64_roles
