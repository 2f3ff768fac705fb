#include "cuda/sm90/kernels/mla_16/instance.cuh"

namespace flashlatent::mla_16 {

namespace {

template <class Element, int kQkDim>
constexpr cuda::DenseInstance turns_instance(Dtype dtype) {
  return instance<Element, kQkDim, 512, sm90::TokenLoader, 1, true>(dtype, cuda::Loading::kTokens);
}

}  // namespace

constinit const Table<kKeys> kInstances =
    cuda::of_keys(kKeys, cuda::joined(instances<576, 512>(), instances<512, 512>(), instances<320, 256>()));
constinit const Table<kTurnsKeys> kTurns =
    cuda::of_keys(kTurnsKeys, Table<kTurnsKeys>{{turns_instance<__nv_bfloat16, 576>(Dtype::kBF16),
                                                 turns_instance<__half, 576>(Dtype::kF16),
                                                 turns_instance<__nv_bfloat16, 512>(Dtype::kBF16),
                                                 turns_instance<__half, 512>(Dtype::kF16)}});

}  // namespace flashlatent::mla_16
