#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

constinit const ShapeInstances kInstances320x256 = cuda::of_keys(kKeys320x256, shape_instances<320, 256>());

}  // namespace flashlatent::seesaw
