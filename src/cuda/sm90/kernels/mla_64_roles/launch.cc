#include "cuda/host/dense_launch.h"
#include "cuda/sm90/kernels/mla_64_roles/instances.h"
#include "cuda/sm90/kernels/mla_64_roles/takes.h"

namespace flashlatent::mla_64_roles {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading) {
    cuda::InstanceKey key = key_of(c.problem);
    if (c.geometry.partition == schedule::Partition::kTurns) {
      key.turns = true;
      return cuda::find_instance({kTurns}, key);
    }
    return cuda::find_instance({schedule::combines_shares(c.geometry.partition) ? kShares : kInstances}, key);
  });
}

}  // namespace flashlatent::mla_64_roles
