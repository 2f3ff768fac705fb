#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const ShapeInstances kInstances576x512 = shape_instances<576, 512>();

}  // namespace flashlatent::etap
