#include "cuda/prefill/instance.cuh"

namespace flashlatent::prefill {

constinit const SegmentInstances kFp16Segments =
    cuda::of_keys(kFp16SegmentKeys, segment_instances<__half>(Dtype::kF16));

}  // namespace flashlatent::prefill
