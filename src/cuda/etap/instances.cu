#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const ShapeInstances kInstances576x512 = shape_instances<576, 512>();
constinit const ShapeInstances kInstances512x512 = shape_instances<512, 512>();
constinit const ShapeInstances kInstances320x256 = shape_instances<320, 256>();
constinit const ShapeInstances kLowInstances576x512 = shape_instances<576, 512, 8>();

}  // namespace flashlatent::etap
