#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/listed_staged_loader.cuh"

namespace flashlatent::mla_64_pingpong {

using Latent656 = parts::ListedStagedLoader<parts::Fp8_656LatentRows, 1, 5>;
using Tokens = parts::TokenLoaderOf<true>;
constinit const ListedInstances kInstancesListed = cuda::of_keys(
    kListedKeys,
    ListedInstances{{instance<__nv_bfloat16, 512, 512, 1, Latent656>(Dtype::kBF16, cuda::Loading::kListedFp8),
                     instance<__nv_bfloat16, 512, 512, 1, Tokens>(Dtype::kBF16, cuda::Loading::kListedTokens),
                     instance<__half, 512, 512, 1, Tokens>(Dtype::kF16, cuda::Loading::kListedTokens)}});

}  // namespace flashlatent::mla_64_pingpong
