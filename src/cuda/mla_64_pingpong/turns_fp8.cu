#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/fp8_register_loader.cuh"
#include "cuda/parts/listed_staged_loader.cuh"

namespace flashlatent::mla_64_pingpong {

using Table = std::array<cuda::DenseInstance, kTurnsFp8Keys.size()>;
using cuda::Loading;
template <int kCluster, int kAhead>
using Loader584 = parts::ListedStagedLoader<parts::Fp8_584Rows, kCluster, kAhead>;
constinit const Table kTurnsFp8 = cuda::of_keys(
    kTurnsFp8Keys,
    Table{{turns_instance<__nv_bfloat16, 576, 1, parts::Fp8RegisterLoader<1>>(Dtype::kBF16, Loading::kFp8),
           turns_instance<__nv_bfloat16, 512, 2, Loader584<2, 8>>(Dtype::kBF16, Loading::kFp8_584),
           turns_instance<__nv_bfloat16, 512, 1, Loader584<1, 5>>(Dtype::kBF16, Loading::kFp8_584)}});

}  // namespace flashlatent::mla_64_pingpong
