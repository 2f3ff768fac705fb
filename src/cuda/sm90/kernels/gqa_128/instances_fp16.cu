#include "cuda/sm90/kernels/gqa_128/instance.cuh"

namespace flashlatent::gqa_128 {

constinit const DtypeInstances kFp16 = cuda::of_keys(kFp16Keys, dtype_instances<__half>(Dtype::kF16));

constinit const SegmentInstances kFp16Segments =
    cuda::of_keys(kFp16SegmentKeys, segment_instances<__half>(Dtype::kF16));

}  // namespace flashlatent::gqa_128
