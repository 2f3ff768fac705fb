#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const Instances kE4m3 = instances<E4m3>(CachedType::kE4m3);

}  // namespace flashlatent::paged
