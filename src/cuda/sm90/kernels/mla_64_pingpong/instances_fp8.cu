// From FP8 caches, and by two lists of tokens.
#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"
#include "cuda/sm90/load/fp8_unit_loader.cuh"

namespace flashlatent::mla_64_pingpong {

namespace {

template <int kQkDim, int kCluster, class Loader>
constexpr cuda::DenseInstance fp8_instance(Dtype dtype, Loading loading) {
  return instance<Bf16, kQkDim, 512, kCluster, Loader>(dtype, loading);
}

}  // namespace

constinit const Fp8Instances kInstancesFp8_656 = cuda::of_keys(
    kFp8Keys, Fp8Instances{{fp8_instance<576, 2, sm90::Fp8UnitLoader>(Dtype::kBF16, Loading::kFp8),
                            fp8_instance<576, 1, Fp8_656FromRegisters<1>>(Dtype::kBF16, Loading::kFp8)}});

constinit const Fp8Instances kInstancesRopeRecords = cuda::of_keys(
    kRopeRecordKeys,
    Fp8Instances{{fp8_instance<512, 2, ListedFp8_584<2>>(Dtype::kBF16, Loading::kRopeRecords),
                  fp8_instance<512, 1, ListedFp8_584<1>>(Dtype::kBF16, Loading::kRopeRecords)}});

constinit const E4m3Instances kInstancesE4m3 = cuda::of_keys(
    kE4m3Keys, E4m3Instances{{fp8_instance<576, 2, E4m3FromRegisters<2>>(Dtype::kU8, Loading::kFp8),
                              fp8_instance<576, 1, E4m3FromRegisters<1>>(Dtype::kU8, Loading::kFp8),
                              fp8_instance<512, 1, ListedE4m3>(Dtype::kU8, Loading::kListedFp8)}});

constinit const ListedInstances kInstancesListed = cuda::of_keys(
    kListedKeys,
    ListedInstances{{fp8_instance<512, 1, ListedFp8_656>(Dtype::kBF16, Loading::kListedFp8),
                     instance<Bf16, 512, 512, 1, ListedTokens>(Dtype::kBF16, Loading::kListedTokens),
                     instance<Fp16, 512, 512, 1, ListedTokens>(Dtype::kF16, Loading::kListedTokens)}});

}  // namespace flashlatent::mla_64_pingpong
