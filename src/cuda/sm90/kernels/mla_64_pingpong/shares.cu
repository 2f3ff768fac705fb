// Instances for CTAs with a share of one item.
#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

constinit const ShapeInstances kShares576x512 =
    cuda::of_keys(kShareKeys576x512,
                  ShapeInstances{{share_instance<Bf16, 576, 1, TmaLoader>(Dtype::kBF16, Loading::kBoxes),
                                  share_instance<Bf16, 576, 1, TokenLoader>(Dtype::kBF16, Loading::kTokens),
                                  share_instance<Fp16, 576, 1, TmaLoader>(Dtype::kF16, Loading::kBoxes),
                                  share_instance<Fp16, 576, 1, TokenLoader>(Dtype::kF16, Loading::kTokens)}});

constinit const Fp8ShareInstances kSharesFp8_656 = cuda::of_keys(
    kFp8ShareKeys,
    Fp8ShareInstances{{share_instance<Bf16, 576, 2, Fp8_656FromRegisters<2>>(Dtype::kBF16, Loading::kFp8)}});

constinit const Fp8Instances kSharesRopeRecords = cuda::of_keys(
    kRopeRecordShareKeys,
    Fp8Instances{{share_instance<Bf16, 512, 2, ListedFp8_584<2>>(Dtype::kBF16, Loading::kRopeRecords),
                  share_instance<Bf16, 512, 1, ListedFp8_584<1>>(Dtype::kBF16, Loading::kRopeRecords)}});

constinit const ListedInstances kSharesListed = cuda::of_keys(
    kListedShareKeys,
    ListedInstances{{share_instance<Bf16, 512, 1, ListedFp8_656>(Dtype::kBF16, Loading::kListedFp8),
                     share_instance<Bf16, 512, 1, ListedTokens>(Dtype::kBF16, Loading::kListedTokens),
                     share_instance<Fp16, 512, 1, ListedTokens>(Dtype::kF16, Loading::kListedTokens)}});

}  // namespace flashlatent::mla_64_pingpong
