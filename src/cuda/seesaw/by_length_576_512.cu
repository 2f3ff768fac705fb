#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

constinit const ShareInstances kByLength576x512 = share_instances<Parts::kByLength>();

}  // namespace flashlatent::seesaw
