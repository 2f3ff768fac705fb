#include "cuda/sm90/kernels/mla_64_roles/instance.cuh"

namespace flashlatent::mla_64_roles {

namespace {

template <bool kHasShare>
constexpr Instances instances() {
  return {{instance<__nv_bfloat16, kHasShare, Supplies::kBoxes>(Dtype::kBF16),
           instance<__nv_bfloat16, kHasShare, Supplies::kTokens>(Dtype::kBF16),
           instance<__half, kHasShare, Supplies::kBoxes>(Dtype::kF16),
           instance<__half, kHasShare, Supplies::kTokens>(Dtype::kF16)}};
}

template <class Element, int kQkDim>
constexpr cuda::DenseInstance turns_instance(Dtype dtype) {
  return instance<Element, false, Supplies::kTokens, true, kQkDim>(dtype);
}

}  // namespace

constinit const Instances kInstances = cuda::of_keys(kKeys, instances<false>());
constinit const Instances kShares = cuda::of_keys(kKeys, instances<true>());

using Table = std::array<cuda::DenseInstance, kTurnsKeys.size()>;
constinit const Table kTurns = cuda::of_keys(
    kTurnsKeys,
    Table{{turns_instance<__nv_bfloat16, 576>(Dtype::kBF16), turns_instance<__half, 576>(Dtype::kF16),
           turns_instance<__nv_bfloat16, 512>(Dtype::kBF16), turns_instance<__half, 512>(Dtype::kF16)}});

}  // namespace flashlatent::mla_64_roles
