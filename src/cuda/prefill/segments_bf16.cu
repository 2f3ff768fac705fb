#include "cuda/prefill/instance.cuh"

namespace flashlatent::prefill {

constinit const SegmentInstances kBf16Segments =
    cuda::of_keys(kBf16SegmentKeys, segment_instances<__nv_bfloat16>(Dtype::kBF16));

}  // namespace flashlatent::prefill
