#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const ShapeInstances kInstances320x256 = shape_instances<320, 256>();

}  // namespace flashlatent::etap
