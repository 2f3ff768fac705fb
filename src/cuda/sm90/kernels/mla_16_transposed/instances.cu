#include "cuda/sm90/kernels/mla_16_transposed/instance.cuh"
#include "cuda/sm90/load/tma_loader.cuh"
#include "cuda/sm90/load/token_loader.cuh"

namespace flashlatent::mla_16_transposed {

namespace {

constexpr Instances instances() {
  using Bf16 = __nv_bfloat16;
  using Fp16 = __half;
  constexpr int kRows = kLowTileRows;
  return {{instance<Bf16, 576, 512, kRows, sm90::TmaLoader>(Dtype::kBF16, cuda::Loading::kBoxes),
           instance<Bf16, 576, 512, kRows, sm90::TokenLoader>(Dtype::kBF16, cuda::Loading::kTokens),
           instance<Fp16, 576, 512, kRows, sm90::TmaLoader>(Dtype::kF16, cuda::Loading::kBoxes),
           instance<Fp16, 576, 512, kRows, sm90::TokenLoader>(Dtype::kF16, cuda::Loading::kTokens)}};
}

}  // namespace

constinit const Instances kLowInstances = cuda::of_keys(kLowKeys, instances());

}  // namespace flashlatent::mla_16_transposed
