#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kInstances32 = instances<1, false, 32>();

}  // namespace flashlatent::direct
