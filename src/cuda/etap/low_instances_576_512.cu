#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const LowInstances kLowInstances576x512 = low_instances<576, 512>();

}  // namespace flashlatent::etap
