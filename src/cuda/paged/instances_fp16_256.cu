#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const DimInstances kFp16x256 = dim_instances<__half, 256>(Dtype::kF16);

}  // namespace flashlatent::paged
