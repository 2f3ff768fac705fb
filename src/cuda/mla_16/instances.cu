#include "cuda/mla_16/instance.cuh"

namespace flashlatent::mla_16 {

constinit const Instances kInstances576x512 = cuda::of_keys(kKeys576x512, instances<576, 512>());
constinit const Instances kInstances512x512 = cuda::of_keys(kKeys512x512, instances<512, 512>());
constinit const Instances kInstances320x256 = cuda::of_keys(kKeys320x256, instances<320, 256>());

}  // namespace flashlatent::mla_16
