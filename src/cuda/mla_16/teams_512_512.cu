#include "cuda/mla_16/instance.cuh"

namespace flashlatent::mla_16 {

constinit const Instances kTeamsOf4x512x512 = cuda::of_keys(kKeysOf4x512x512, instances<512, 512, 4>());
constinit const Instances kTeamsOf8x512x512 = cuda::of_keys(kKeysOf8x512x512, instances<512, 512, 8>());

}  // namespace flashlatent::mla_16
