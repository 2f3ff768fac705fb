#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const DimInstances kFp16x128 = dim_instances<__half, 128>(Dtype::kF16);

}  // namespace flashlatent::paged
