#include "cuda/mla_16_transposed/instance.cuh"
#include "cuda/parts/fp8_staged_loader.cuh"
#include "cuda/parts/listed_bulk_loader.cuh"

namespace flashlatent::mla_16_transposed {

template <int kQkDim, class Loader>
constexpr cuda::DenseInstance e4m3_instance(cuda::Loading loading) {
  return instance<__nv_bfloat16, kQkDim, 512, kTileRows, Loader>(Dtype::kU8, loading);
}
constinit const E4m3Instances kInstancesE4m3 = cuda::of_keys(
    kE4m3Keys,
    E4m3Instances{
        {e4m3_instance<576, parts::Fp8StagedLoaderOf<parts::E4m3Token>>(cuda::Loading::kFp8),
         e4m3_instance<576, parts::ListedBulkLoader<parts::E4m3Rows, 1>>(cuda::Loading::kListedFp8),
         e4m3_instance<512, parts::ListedBulkLoader<parts::E4m3LatentRows, 2>>(cuda::Loading::kListedFp8)}});

}  // namespace flashlatent::mla_16_transposed
