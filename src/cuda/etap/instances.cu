#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const Instances kLowInstances = cuda::of_keys(kLowKeys, instances());

}  // namespace flashlatent::etap
