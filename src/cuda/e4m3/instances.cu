#include "cuda/e4m3/instance.cuh"

namespace flashlatent::mla_e4m3 {

constinit const Instances kInstances = cuda::of_keys(kKeys, instances<e4m3_latent::kDim>());

}  // namespace flashlatent::mla_e4m3
