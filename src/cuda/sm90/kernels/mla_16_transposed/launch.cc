#include "cuda/host/dense_launch.h"
#include "cuda/sm90/kernels/mla_16_transposed/instances.h"
#include "cuda/sm90/kernels/mla_16_transposed/takes.h"

namespace flashlatent::mla_16_transposed {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading loading) {
    if (c.geometry.partition == schedule::Partition::kTurns) {
      cuda::InstanceKey key = key_of(c.problem, loading);
      key.turns = true;
      return cuda::find_instance({kTurns, kTurnsE4m3, kTurnsRecords}, key);
    }
    if (has_one_item(c.problem, c.geometry)) {
      return cuda::find_instance({kShares}, key_of(c.problem, loading));
    }
    return cuda::find_instance({kLowInstances, kInstancesFp8_656, kInstancesRopeRecords, kInstancesListed,
                                kInstancesE4m3, kInstancesRecords},
                               key_of(c.problem, loading));
  });
}

}  // namespace flashlatent::mla_16_transposed
