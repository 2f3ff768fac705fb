#include "cuda/quartet/instance.cuh"

namespace flashlatent::quartet {

constinit const Instances kMerging = instances<true>();

}  // namespace flashlatent::quartet
