#include "cuda/trio/instance.cuh"

namespace flashlatent::trio {

constinit const Instances kTurns = cuda::of_keys(
    kTurnsKeys, Instances{{instance<__nv_bfloat16, false, Supplies::kTokens, true>(Dtype::kBF16),
                           instance<__half, false, Supplies::kTokens, true>(Dtype::kF16)}});

}  // namespace flashlatent::trio
