#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/listed_staged_loader.cuh"

namespace flashlatent::mla_64_pingpong {

using Table = std::array<cuda::DenseInstance, kTurnsListedKeys.size()>;
using cuda::Loading;
using Latent656 = parts::ListedStagedLoader<parts::Fp8_656LatentRows, 1, 5>;
using Tokens = parts::TokenLoaderOf<true>;
constinit const Table kTurnsListed =
    cuda::of_keys(kTurnsListedKeys,
                  Table{{turns_instance<__nv_bfloat16, 512, 1, Latent656>(Dtype::kBF16, Loading::kListedFp8),
                         turns_instance<__nv_bfloat16, 512, 1, Tokens>(Dtype::kBF16, Loading::kListedTokens),
                         turns_instance<__half, 512, 1, Tokens>(Dtype::kF16, Loading::kListedTokens)}});

}  // namespace flashlatent::mla_64_pingpong
