#include "cuda/sm90/kernels/mla_16/instance.cuh"

namespace flashlatent::mla_16 {

constinit const Table<kTeamKeys> kTeams = cuda::of_keys(
    kTeamKeys, cuda::joined(instances<576, 512, 4>(), instances<576, 512, 8>(), instances<576, 512, 16>(),
                            instances<512, 512, 4>(), instances<512, 512, 8>(), instances<320, 256, 4>(),
                            instances<320, 256, 8>()));

}  // namespace flashlatent::mla_16
