#include "cuda/mla_64_e4m3/instance.cuh"

namespace flashlatent::mla_64_e4m3 {

constinit const Instances kInstancesWithoutRope =
    cuda::of_keys(kKeysWithoutRope, instances<e4m3_latent::kLatentDim>());

}  // namespace flashlatent::mla_64_e4m3
