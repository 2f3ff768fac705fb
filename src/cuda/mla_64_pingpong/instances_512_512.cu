#include "cuda/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

constinit const ShapeInstances kInstances512x512 = cuda::of_keys(kKeys512x512, shape_instances<512, 512>());

}  // namespace flashlatent::mla_64_pingpong
