#include "cuda/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

using Table = std::array<cuda::DenseInstance, kTurnsKeys.size()>;
using cuda::Loading;
using parts::TokenLoader;
constinit const Table kTurns = cuda::of_keys(
    kTurnsKeys, Table{{turns_instance<__nv_bfloat16, 576, 1, TokenLoader>(Dtype::kBF16, Loading::kTokens),
                       turns_instance<__half, 576, 1, TokenLoader>(Dtype::kF16, Loading::kTokens),
                       turns_instance<__nv_bfloat16, 512, 1, TokenLoader>(Dtype::kBF16, Loading::kTokens),
                       turns_instance<__half, 512, 1, TokenLoader>(Dtype::kF16, Loading::kTokens)}});

}  // namespace flashlatent::mla_64_pingpong
