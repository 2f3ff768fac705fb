#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kInstances = instances<4>();

}  // namespace flashlatent::direct
