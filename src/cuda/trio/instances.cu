#include "cuda/trio/instance.cuh"

namespace flashlatent::trio {

constinit const Instances kInstances = instances<false>();
constinit const Instances kMerging = instances<true>();

}  // namespace flashlatent::trio
