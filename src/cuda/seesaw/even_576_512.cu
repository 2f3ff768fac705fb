#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

constinit const ShareInstances kEven576x512 = share_instances<Parts::kEven>();

}  // namespace flashlatent::seesaw
