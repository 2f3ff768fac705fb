#include "cuda/prefill/instance.cuh"

namespace flashlatent::prefill {

constinit const SegmentInstances kBf16Units =
    cuda::of_keys(kBf16UnitKeys, segment_instances<__nv_bfloat16, Kind::kUnits>(Dtype::kBF16));

}  // namespace flashlatent::prefill
