#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kMerging = instances<true>();

}  // namespace flashlatent::direct
