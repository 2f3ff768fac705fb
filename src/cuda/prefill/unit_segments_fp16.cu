#include "cuda/prefill/instance.cuh"

namespace flashlatent::prefill {

constinit const SegmentInstances kFp16Units =
    cuda::of_keys(kFp16UnitKeys, segment_instances<__half, Kind::kUnits>(Dtype::kF16));

}  // namespace flashlatent::prefill
