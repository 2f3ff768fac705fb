#include "cuda/mla_64_roles/instance.cuh"

namespace flashlatent::mla_64_roles {

namespace {

template <bool kHasShare>
constexpr Instances instances() {
  return {{instance<__nv_bfloat16, kHasShare, Supplies::kBoxes>(Dtype::kBF16),
           instance<__nv_bfloat16, kHasShare, Supplies::kTokens>(Dtype::kBF16),
           instance<__half, kHasShare, Supplies::kBoxes>(Dtype::kF16),
           instance<__half, kHasShare, Supplies::kTokens>(Dtype::kF16)}};
}

}  // namespace

constinit const Instances kInstances = cuda::of_keys(kKeys, instances<false>());
constinit const Instances kShares = cuda::of_keys(kKeys, instances<true>());

}  // namespace flashlatent::mla_64_roles
