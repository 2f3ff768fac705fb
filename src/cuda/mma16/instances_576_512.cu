#include "cuda/mma16/instance.cuh"

namespace flashlatent::mma16 {

constinit const ShapeInstances kInstances576x512 = shape_instances<576, 512>();

}  // namespace flashlatent::mma16
