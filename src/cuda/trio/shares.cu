#include "cuda/trio/instance.cuh"

namespace flashlatent::trio {

constinit const Instances kShares = instances<false, true>();

}  // namespace flashlatent::trio
