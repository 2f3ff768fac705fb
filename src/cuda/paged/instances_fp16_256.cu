#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const WideInstances kFp16x256 = wide_instances<__half, 256>(Dtype::kF16);

}  // namespace flashlatent::paged
