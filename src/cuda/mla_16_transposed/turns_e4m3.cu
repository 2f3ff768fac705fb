#include "cuda/mla_16_transposed/instance.cuh"
#include "cuda/parts/listed_bulk_loader.cuh"

namespace flashlatent::mla_16_transposed {

namespace {

template <int kQkDim, class Loader>
constexpr cuda::DenseInstance turns_instance() {
  return instance<__nv_bfloat16, kQkDim, 512, kTileRows, Loader, Told::kTurns>(Dtype::kU8,
                                                                               cuda::Loading::kListedFp8);
}

}  // namespace

using Table = std::array<cuda::DenseInstance, kTurnsE4m3Keys.size()>;
constinit const Table kTurnsE4m3 = cuda::of_keys(
    kTurnsE4m3Keys, Table{{turns_instance<576, parts::ListedBulkLoader<parts::E4m3Rows, 1>>(),
                           turns_instance<512, parts::ListedBulkLoader<parts::E4m3LatentRows, 2>>()}});

}  // namespace flashlatent::mla_16_transposed
