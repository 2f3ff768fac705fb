#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const Instances kInstances = cuda::of_keys(kKeys, instances<kTileRows>());
constinit const Instances kLowInstances = cuda::of_keys(kLowKeys, instances<kLowTileRows>());

}  // namespace flashlatent::etap
