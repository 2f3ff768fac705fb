#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kMerging = instances<1, true>();

}  // namespace flashlatent::direct
