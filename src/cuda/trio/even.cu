#include "cuda/trio/instance.cuh"

namespace flashlatent::trio {

constinit const Instances kEven = share_instances<parts::Parts::kEven>();

}  // namespace flashlatent::trio
