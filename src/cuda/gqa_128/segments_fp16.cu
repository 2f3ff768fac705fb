#include "cuda/gqa_128/instance.cuh"

namespace flashlatent::gqa_128 {

constinit const SegmentInstances kFp16Segments =
    cuda::of_keys(kFp16SegmentKeys, segment_instances<__half>(Dtype::kF16));

}  // namespace flashlatent::gqa_128
