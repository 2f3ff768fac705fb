#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

namespace {

template <int kQkDim, int kVDim>
constexpr ShapeInstances instances() {
  return {{instance<Bf16, kQkDim, kVDim, 1, TmaLoader>(Dtype::kBF16, Loading::kBoxes),
           instance<Bf16, kQkDim, kVDim, 1, TokenLoader>(Dtype::kBF16, Loading::kTokens),
           instance<Fp16, kQkDim, kVDim, 1, TmaLoader>(Dtype::kF16, Loading::kBoxes),
           instance<Fp16, kQkDim, kVDim, 1, TokenLoader>(Dtype::kF16, Loading::kTokens)}};
}

}  // namespace

constinit const ShapeInstances kInstances576x512 = cuda::of_keys(kKeys576x512, instances<576, 512>());
constinit const ShapeInstances kInstances512x512 = cuda::of_keys(kKeys512x512, instances<512, 512>());
constinit const ShapeInstances kInstances320x256 = cuda::of_keys(kKeys320x256, instances<320, 256>());

}  // namespace flashlatent::mla_64_pingpong
