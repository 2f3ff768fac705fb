#include "cuda/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

constinit const ShapeInstances kInstances320x256 = cuda::of_keys(kKeys320x256, shape_instances<320, 256>());

}  // namespace flashlatent::mla_64_pingpong
