#include "cuda/trio/instances.h"
#include "cuda/trio/kernel.cuh"

namespace flashlatent::trio {

namespace {

static_assert(kStageTokens == kPageTokens, "a stage is one box");

template <class Element, bool kHasShare, Supplies kSupplies>
constexpr cuda::DenseInstance instance(Dtype dtype) {
  using Config = trio::Config<Element, 576, 512, kHasShare, kSupplies>;
  return {.key = {.dtype = dtype,
                  .qk_dim = Config::kQkDim,
                  .v_dim = Config::kVDim,
                  .tile_rows = parts::kTileRows,
                  .loading = Config::kByTokens ? cuda::Loading::kTokens : cuda::Loading::kBoxes},
          .kernel = cuda::compiled_kernel<kernel<Config>, Config, SharedMemory<Config>>(),
          .boxes = {.kv = Config::kByTokens ? cuda::kv_tensor_map : cuda::kv_chunks_map,
                    .query = cuda::query_chunks_map,
                    .most_tokens = kStageTokens,
                    .query_rows = kStageTokens},
          .merges = Config::kMerges};
}

template <bool kHasShare, Supplies kSupplies>
constexpr Instances instances() {
  return {{instance<__nv_bfloat16, kHasShare, kSupplies>(Dtype::kBF16),
           instance<__half, kHasShare, kSupplies>(Dtype::kF16)}};
}

}  // namespace

constinit const Instances kInstances = cuda::of_keys(kKeys, instances<false, Supplies::kBoxes>());
constinit const Instances kShares = cuda::of_keys(kKeys, instances<true, Supplies::kBoxes>());
constinit const Instances kByTokens = cuda::of_keys(kKeysByTokens, instances<false, Supplies::kTokens>());
constinit const Instances kSharesByTokens =
    cuda::of_keys(kKeysByTokens, instances<true, Supplies::kTokens>());

}  // namespace flashlatent::trio
