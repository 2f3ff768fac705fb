#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kMerging8 = instances<1, true, 8>();

}  // namespace flashlatent::direct
