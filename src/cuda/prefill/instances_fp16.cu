#include "cuda/prefill/instance.cuh"

namespace flashlatent::prefill {

constinit const DtypeInstances kFp16 = dtype_instances<__half>(Dtype::kF16);

}  // namespace flashlatent::prefill
