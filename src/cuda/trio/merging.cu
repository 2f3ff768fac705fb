#include "cuda/trio/instance.cuh"

namespace flashlatent::trio {

constinit const Instances kMerging = instances<true>();

}  // namespace flashlatent::trio
