#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const DimInstances kBf16x128 = dim_instances<__nv_bfloat16, 128>(Dtype::kBF16);

}  // namespace flashlatent::paged
