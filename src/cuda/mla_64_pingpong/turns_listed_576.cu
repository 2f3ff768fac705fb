#include "cuda/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

using Table = std::array<cuda::DenseInstance, kTurnsListed576Keys.size()>;

using cuda::Loading;
using Tokens = parts::TokenLoaderOf<true>;
constinit const Table kTurnsListed576 =
    cuda::of_keys(kTurnsListed576Keys,
                  Table{{turns_instance<__nv_bfloat16, 576, 1, Tokens>(Dtype::kBF16, Loading::kListedTokens),
                         turns_instance<__half, 576, 1, Tokens>(Dtype::kF16, Loading::kListedTokens)}});

}  // namespace flashlatent::mla_64_pingpong
