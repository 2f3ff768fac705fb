// Sparse prefill.
#include "cuda/sm90/kernels/mla_64_e4m3/instance.cuh"

namespace flashlatent::mla_64_e4m3 {

constinit const TurnsInstances kTurnsInstances = cuda::of_keys(
    kTurnsKeys,
    cuda::joined(turns_instances<e4m3_latent::kDim>(), turns_instances<e4m3_latent::kLatentDim>()));

}  // namespace flashlatent::mla_64_e4m3
