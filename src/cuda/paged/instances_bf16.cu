#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const Instances kBf16 = instances<__nv_bfloat16>(CachedType::kBF16);

}  // namespace flashlatent::paged
