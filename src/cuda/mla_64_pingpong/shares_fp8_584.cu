#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/listed_staged_loader.cuh"

namespace flashlatent::mla_64_pingpong {

template <int kCluster, int kAhead>
constexpr cuda::DenseInstance share_584_instance() {
  return listed_share_instance<__nv_bfloat16, kCluster,
                               parts::ListedStagedLoader<parts::Fp8_584Rows, kCluster, kAhead>>(
      Dtype::kBF16, cuda::Loading::kFp8_584);
}
constinit const Fp8Instances kSharesFp8_584 =
    cuda::of_keys(kFp8_584ShareKeys, Fp8Instances{{share_584_instance<2, 8>(), share_584_instance<1, 5>()}});

}  // namespace flashlatent::mla_64_pingpong
