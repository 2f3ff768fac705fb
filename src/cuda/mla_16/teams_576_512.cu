#include "cuda/mla_16/instance.cuh"

namespace flashlatent::mla_16 {

constinit const Instances kTeamsOf4x576x512 = cuda::of_keys(kKeysOf4x576x512, instances<576, 512, 4>());
constinit const Instances kTeamsOf8x576x512 = cuda::of_keys(kKeysOf8x576x512, instances<576, 512, 8>());
constinit const Instances kTeamsOf16x576x512 = cuda::of_keys(kKeysOf16x576x512, instances<576, 512, 16>());

}  // namespace flashlatent::mla_16
