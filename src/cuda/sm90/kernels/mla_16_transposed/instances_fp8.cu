#include "cuda/sm90/kernels/mla_16_transposed/instance.cuh"

namespace flashlatent::mla_16_transposed {

constinit const Fp8Instances kInstancesFp8_656 = cuda::of_keys(
    kFp8Keys, Fp8Instances{{fp8_instance<576, sm90::Fp8StagedLoader>(Dtype::kBF16, Loading::kFp8)}});
constinit const Fp8Instances kInstancesRopeRecords = cuda::of_keys(
    kRopeRecordKeys, Fp8Instances{{fp8_instance<512, ListedFp8_584>(Dtype::kBF16, Loading::kRopeRecords)}});
constinit const Fp8Instances kInstancesRecords = cuda::of_keys(
    kRecordsKeys, Fp8Instances{{fp8_instance<512, ListedRecords>(Dtype::kBF16, Loading::kRecords)}});
constinit const Fp8Instances kInstancesListed = cuda::of_keys(
    kListedKeys, Fp8Instances{{fp8_instance<576, ListedFp8_656>(Dtype::kBF16, Loading::kListedFp8)}});
constinit const E4m3Instances kInstancesE4m3 = cuda::of_keys(
    kE4m3Keys,
    E4m3Instances{{fp8_instance<576, sm90::Fp8StagedLoaderOf<sm90::E4m3Rows>>(Dtype::kU8, Loading::kFp8),
                   fp8_instance<576, ListedE4m3>(Dtype::kU8, Loading::kListedFp8),
                   fp8_instance<512, ListedE4m3Latent>(Dtype::kU8, Loading::kListedFp8)}});

}  // namespace flashlatent::mla_16_transposed
