#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/listed_staged_loader.cuh"

namespace flashlatent::mla_64_pingpong {

using cuda::Loading;
using Latent656 = parts::ListedStagedLoader<parts::Fp8_656LatentRows, 1, 5>;
using Tokens = parts::TokenLoaderOf<true>;
constinit const ListedInstances kSharesListed = cuda::of_keys(
    kListedShareKeys,
    ListedInstances{{listed_share_instance<__nv_bfloat16, 1, Latent656>(Dtype::kBF16, Loading::kListedFp8),
                     listed_share_instance<__nv_bfloat16, 1, Tokens>(Dtype::kBF16, Loading::kListedTokens),
                     listed_share_instance<__half, 1, Tokens>(Dtype::kF16, Loading::kListedTokens)}});

}  // namespace flashlatent::mla_64_pingpong
