#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const DimInstances kFp16x64 = dim_instances<__half, 64>(Dtype::kF16);

}  // namespace flashlatent::paged
