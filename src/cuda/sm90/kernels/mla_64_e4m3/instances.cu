#include "cuda/sm90/kernels/mla_64_e4m3/instance.cuh"

namespace flashlatent::mla_64_e4m3 {

constinit const Instances kInstances =
    cuda::of_keys(kKeys, cuda::joined(instances<e4m3_latent::kDim>(), instances<e4m3_latent::kLatentDim>()));

}  // namespace flashlatent::mla_64_e4m3
