#include "cuda/trio/instance.cuh"

namespace flashlatent::trio {

constinit const Instances kByLength = share_instances<parts::Parts::kByLength>();

}  // namespace flashlatent::trio
