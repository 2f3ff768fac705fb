// The instances for sparse prefill.
#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

namespace {

template <const auto& kKeys>
using Table = std::array<cuda::DenseInstance, kKeys.size()>;

}  // namespace

constinit const Table<kTurnsKeys> kTurns = cuda::of_keys(
    kTurnsKeys,
    Table<kTurnsKeys>{{turns_instance<Bf16, 576, 1, TokenLoader>(Dtype::kBF16, Loading::kTokens),
                       turns_instance<Fp16, 576, 1, TokenLoader>(Dtype::kF16, Loading::kTokens),
                       turns_instance<Bf16, 512, 1, TokenLoader>(Dtype::kBF16, Loading::kTokens),
                       turns_instance<Fp16, 512, 1, TokenLoader>(Dtype::kF16, Loading::kTokens)}});

constinit const Table<kTurnsFp8Keys> kTurnsFp8 =
    cuda::of_keys(kTurnsFp8Keys,
                  Table<kTurnsFp8Keys>{
                      {turns_instance<Bf16, 576, 1, Fp8_656FromRegisters<1>>(Dtype::kBF16, Loading::kFp8),
                       turns_instance<Bf16, 512, 2, ListedFp8_584<2>>(Dtype::kBF16, Loading::kRopeRecords),
                       turns_instance<Bf16, 512, 1, ListedFp8_584<1>>(Dtype::kBF16, Loading::kRopeRecords)}});

constinit const Table<kTurnsListedKeys> kTurnsListed = cuda::of_keys(
    kTurnsListedKeys, Table<kTurnsListedKeys>{
                          {turns_instance<Bf16, 512, 1, ListedFp8_656>(Dtype::kBF16, Loading::kListedFp8),
                           turns_instance<Bf16, 512, 1, ListedTokens>(Dtype::kBF16, Loading::kListedTokens),
                           turns_instance<Fp16, 512, 1, ListedTokens>(Dtype::kF16, Loading::kListedTokens)}});

constinit const Table<kTurnsListed576Keys> kTurnsListed576 =
    cuda::of_keys(kTurnsListed576Keys,
                  Table<kTurnsListed576Keys>{
                      {turns_instance<Bf16, 576, 1, ListedTokens>(Dtype::kBF16, Loading::kListedTokens),
                       turns_instance<Fp16, 576, 1, ListedTokens>(Dtype::kF16, Loading::kListedTokens)}});

constinit const Table<kTurnsE4m3Keys> kTurnsE4m3 = cuda::of_keys(
    kTurnsE4m3Keys,
    Table<kTurnsE4m3Keys>{{turns_instance<Bf16, 576, 1, E4m3FromRegisters<1>>(Dtype::kU8, Loading::kFp8),
                           turns_instance<Bf16, 512, 1, ListedE4m3>(Dtype::kU8, Loading::kListedFp8)}});

}  // namespace flashlatent::mla_64_pingpong
