#include "cuda/mma16/instance.cuh"

namespace flashlatent::mma16 {

constinit const ShapeInstances kInstances512x512 = shape_instances<512, 512>();

}  // namespace flashlatent::mma16
