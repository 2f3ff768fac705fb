#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kInstances16 = instances<16, 4>();

}  // namespace flashlatent::direct
