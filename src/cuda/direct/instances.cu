#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kInstances = instances();

}  // namespace flashlatent::direct
