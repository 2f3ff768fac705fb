#include "cuda/trio/instance.cuh"

namespace flashlatent::trio {

constinit const Instances kInstances = instances<false>();

}  // namespace flashlatent::trio
