#include "cuda/mla_16_transposed/instance.cuh"

namespace flashlatent::mla_16_transposed {

constinit const Instances kLowInstances = cuda::of_keys(kLowKeys, instances());

}  // namespace flashlatent::mla_16_transposed
