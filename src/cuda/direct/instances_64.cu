#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kInstances64 = instances<64, 2>();

}  // namespace flashlatent::direct
