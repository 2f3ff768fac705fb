#include "cuda/mla_16/instance.cuh"

namespace flashlatent::mla_16 {

constinit const Instances kTeamsOf4x320x256 = cuda::of_keys(kKeysOf4x320x256, instances<320, 256, 4>());
constinit const Instances kTeamsOf8x320x256 = cuda::of_keys(kKeysOf8x320x256, instances<320, 256, 8>());

}  // namespace flashlatent::mla_16
