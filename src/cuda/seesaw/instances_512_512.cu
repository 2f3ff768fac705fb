#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

constinit const ShapeInstances kInstances512x512 = cuda::of_keys(kKeys512x512, shape_instances<512, 512>());

}  // namespace flashlatent::seesaw
