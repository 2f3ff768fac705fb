#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

constinit const ShapeInstances kInstances576x512 = cuda::of_keys(kKeys576x512, shape_instances<576, 512>());

}  // namespace flashlatent::seesaw
