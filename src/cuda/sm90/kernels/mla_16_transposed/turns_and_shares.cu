// The instances for sparse prefill, and for calls whose CTAs have a share of one item.
#include "cuda/sm90/kernels/mla_16_transposed/instance.cuh"

namespace flashlatent::mla_16_transposed {

namespace {

template <const auto& kKeys>
using Table = std::array<cuda::DenseInstance, kKeys.size()>;

constexpr cuda::DenseInstance kRecordsShare =
    fp8_instance<512, ListedRecords, Told::kShare>(Dtype::kBF16, Loading::kRecords);

}  // namespace

constinit const Table<kTurnsKeys> kTurns = cuda::of_keys(
    kTurnsKeys,
    Table<kTurnsKeys>{{fp8_instance<512, ListedFp8_584, Told::kTurns>(Dtype::kBF16, Loading::kRopeRecords),
                       fp8_instance<576, ListedFp8_656, Told::kTurns>(Dtype::kBF16, Loading::kListedFp8)}});
constinit const Table<kTurnsE4m3Keys> kTurnsE4m3 =
    cuda::of_keys(kTurnsE4m3Keys,
                  Table<kTurnsE4m3Keys>{
                      {fp8_instance<576, ListedE4m3, Told::kTurns>(Dtype::kU8, Loading::kListedFp8),
                       fp8_instance<512, ListedE4m3Latent, Told::kTurns>(Dtype::kU8, Loading::kListedFp8)}});
constinit const Fp8Instances kTurnsRecords = cuda::of_keys(
    kTurnsRecordsKeys,
    Fp8Instances{{fp8_instance<512, ListedRecords, Told::kTurns>(Dtype::kBF16, Loading::kRecords)}});
constinit const Table<kShareKeys> kShares = cuda::of_keys(
    kShareKeys,
    Table<kShareKeys>{{fp8_instance<512, ListedFp8_584, Told::kShare>(Dtype::kBF16, Loading::kRopeRecords),
                       fp8_instance<576, ListedFp8_656, Told::kShare>(Dtype::kBF16, Loading::kListedFp8),
                       kRecordsShare}});

}  // namespace flashlatent::mla_16_transposed
