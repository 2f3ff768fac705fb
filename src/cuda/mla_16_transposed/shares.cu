#include "cuda/mla_16_transposed/instance.cuh"
#include "cuda/parts/listed_bulk_loader.cuh"

namespace flashlatent::mla_16_transposed {

namespace {

template <int kQkDim, class Loader>
constexpr cuda::DenseInstance share_instance(cuda::Loading loading) {
  return instance<__nv_bfloat16, kQkDim, 512, kTileRows, Loader, Told::kShare>(Dtype::kBF16, loading);
}

}  // namespace

using Table = std::array<cuda::DenseInstance, kShareKeys.size()>;
constinit const Table kShares = cuda::of_keys(
    kShareKeys,
    Table{{share_instance<512, parts::ListedBulkLoader<parts::Fp8_584Rows, 2>>(cuda::Loading::kFp8_584),
           share_instance<576, parts::ListedBulkLoader<parts::Fp8_656Rows, 1>>(cuda::Loading::kListedFp8)}});

}  // namespace flashlatent::mla_16_transposed
