#include "cuda/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

namespace {
template <class Element, class Loader>
constexpr cuda::DenseInstance share_instance(Dtype dtype, cuda::Loading loading) {
  return instance<Element, 576, 512, 1, Loader, 1, true>(dtype, loading);
}
}  // namespace

constinit const ShapeInstances kShares576x512 = cuda::of_keys(
    kShareKeys576x512,
    ShapeInstances{{share_instance<__nv_bfloat16, parts::TmaLoader>(Dtype::kBF16, cuda::Loading::kBoxes),
                    share_instance<__nv_bfloat16, parts::TokenLoader>(Dtype::kBF16, cuda::Loading::kTokens),
                    share_instance<__half, parts::TmaLoader>(Dtype::kF16, cuda::Loading::kBoxes),
                    share_instance<__half, parts::TokenLoader>(Dtype::kF16, cuda::Loading::kTokens)}});

}  // namespace flashlatent::mla_64_pingpong
