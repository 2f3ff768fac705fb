#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const Instances kInstances = instances<16>();
constinit const Instances kLowInstances = instances<8>();

}  // namespace flashlatent::etap
