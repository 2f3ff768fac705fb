#include "cuda/prefill/instance.cuh"

namespace flashlatent::prefill {

constinit const DtypeInstances kFp16 = cuda::of_keys(kFp16Keys, dtype_instances<__half>(Dtype::kF16));

}  // namespace flashlatent::prefill
