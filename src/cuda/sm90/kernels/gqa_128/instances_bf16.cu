#include "cuda/sm90/kernels/gqa_128/instance.cuh"

namespace flashlatent::gqa_128 {

constinit const DtypeInstances kBf16 = cuda::of_keys(kBf16Keys, dtype_instances<__nv_bfloat16>(Dtype::kBF16));

constinit const SegmentInstances kBf16Segments =
    cuda::of_keys(kBf16SegmentKeys, segment_instances<__nv_bfloat16>(Dtype::kBF16));

}  // namespace flashlatent::gqa_128
