#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const ShapeInstances kLowInstances576x512 = shape_instances<576, 512, 8>();

}  // namespace flashlatent::etap
