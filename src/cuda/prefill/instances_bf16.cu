#include "cuda/prefill/instance.cuh"

namespace flashlatent::prefill {

constinit const DtypeInstances kBf16 = cuda::of_keys(kBf16Keys, dtype_instances<__nv_bfloat16>(Dtype::kBF16));

}  // namespace flashlatent::prefill
