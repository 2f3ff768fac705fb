#include "cuda/mla_64_roles/instance.cuh"

namespace flashlatent::mla_64_roles {

namespace {

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

}  // namespace flashlatent::mla_64_roles
