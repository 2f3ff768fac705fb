#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/fp8_register_loader.cuh"
#include "cuda/parts/listed_staged_loader.cuh"

namespace flashlatent::mla_64_pingpong {

template <int kQkDim, int kCluster, class Loader>
constexpr cuda::DenseInstance e4m3_instance(cuda::Loading loading) {
  return instance<__nv_bfloat16, kQkDim, 512, kCluster, Loader>(Dtype::kU8, loading);
}
template <int kCluster>
using FromRegisters = parts::Fp8RegisterLoader<kCluster, parts::E4m3Token>;
constinit const E4m3Instances kInstancesE4m3 = cuda::of_keys(
    kE4m3Keys, E4m3Instances{{e4m3_instance<576, 2, FromRegisters<2>>(cuda::Loading::kFp8),
                              e4m3_instance<576, 1, FromRegisters<1>>(cuda::Loading::kFp8),
                              e4m3_instance<512, 1, parts::ListedStagedLoader<parts::E4m3LatentRows, 1, 5>>(
                                  cuda::Loading::kListedFp8)}});

}  // namespace flashlatent::mla_64_pingpong
