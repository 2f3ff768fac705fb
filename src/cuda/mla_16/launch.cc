#include "cuda/common/dense_launch.h"
#include "cuda/mla_16/choice.h"
#include "cuda/mla_16/instances.h"

namespace flashlatent::mla_16 {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading loading) {
    if (c.geometry.partition == schedule::Partition::kTurns) {
      cuda::InstanceKey key = key_of(c.problem, loading, 1);
      key.turns = true;
      return cuda::find_instance({kTurns}, key);
    }
    return cuda::find_instance(
        {kInstances576x512, kInstances512x512, kInstances320x256, kTeamsOf4x576x512, kTeamsOf8x576x512,
         kTeamsOf16x576x512, kTeamsOf4x512x512, kTeamsOf8x512x512, kTeamsOf4x320x256, kTeamsOf8x320x256},
        key_of(c.problem, loading, c.geometry.team));
  });
}

}  // namespace flashlatent::mla_16
