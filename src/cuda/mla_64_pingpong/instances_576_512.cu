#include "cuda/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

constinit const ShapeInstances kInstances576x512 = cuda::of_keys(kKeys576x512, shape_instances<576, 512>());

}  // namespace flashlatent::mla_64_pingpong
