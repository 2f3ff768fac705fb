#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kMerging32 = instances<1, true, 32>();

}  // namespace flashlatent::direct
