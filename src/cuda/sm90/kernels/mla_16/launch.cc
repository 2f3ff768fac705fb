#include "cuda/host/dense_launch.h"
#include "cuda/sm90/kernels/mla_16/instances.h"
#include "cuda/sm90/kernels/mla_16/takes.h"

namespace flashlatent::mla_16 {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading loading) {
    if (c.geometry.partition == schedule::Partition::kTurns) {
      cuda::InstanceKey key = key_of(c.problem, loading, 1);
      key.turns = true;
      return cuda::find_instance({kTurns}, key);
    }
    return cuda::find_instance({kInstances, kTeams}, key_of(c.problem, loading, c.geometry.team));
  });
}

}  // namespace flashlatent::mla_16
