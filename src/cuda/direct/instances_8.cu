#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kInstances8 = instances<1, false, 8>();

}  // namespace flashlatent::direct
