#include "cuda/common/dense_launch.h"
#include "cuda/trio/choice.h"
#include "cuda/trio/instances.h"

namespace flashlatent::trio {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading) {
    const cuda::InstanceKey key = key_of(c.problem);
    return schedule::combines_shares(c.geometry.partition)
               ? cuda::find_instance({kShares, kSharesByTokens}, key)
               : cuda::find_instance({kInstances, kByTokens}, key);
  });
}

}  // namespace flashlatent::trio
