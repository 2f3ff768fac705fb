#include "cuda/quartet/instance.cuh"

namespace flashlatent::quartet {

constinit const Instances kInstances = instances<false>();

}  // namespace flashlatent::quartet
