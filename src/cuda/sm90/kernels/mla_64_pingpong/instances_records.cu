// From mxfp8_528, nvfp4_288 and fp8_528 caches.
#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

constinit const Fp8Instances kInstancesRecords = cuda::of_keys(
    kRecordsKeys,
    Fp8Instances{{instance<Bf16, 512, 512, 2, ListedRecords<2>>(Dtype::kBF16, Loading::kRecords),
                  instance<Bf16, 512, 512, 1, ListedRecords<1>>(Dtype::kBF16, Loading::kRecords)}});

constinit const Fp8Instances kSharesRecords = cuda::of_keys(
    kRecordsShareKeys,
    Fp8Instances{{share_instance<Bf16, 512, 2, ListedRecords<2>>(Dtype::kBF16, Loading::kRecords),
                  share_instance<Bf16, 512, 1, ListedRecords<1>>(Dtype::kBF16, Loading::kRecords)}});

constinit const Fp8Instances kTurnsRecords = cuda::of_keys(
    kTurnsRecordsKeys,
    Fp8Instances{{turns_instance<Bf16, 512, 2, ListedRecords<2>>(Dtype::kBF16, Loading::kRecords),
                  turns_instance<Bf16, 512, 1, ListedRecords<1>>(Dtype::kBF16, Loading::kRecords)}});

}  // namespace flashlatent::mla_64_pingpong
