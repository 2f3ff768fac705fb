#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const ShapeInstances kInstances512x512 = shape_instances<512, 512>();

}  // namespace flashlatent::etap
