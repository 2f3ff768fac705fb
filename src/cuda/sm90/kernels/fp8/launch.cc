#include "cuda/host/dense_launch.h"
#include "cuda/host/layer_edges.h"
#include "cuda/sm90/kernels/fp8/instances.h"
#include "cuda/sm90/kernels/fp8/takes.h"

namespace flashlatent::fp8 {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading) {
    const cuda::InstanceKey asked = key_of(c.problem, c.geometry, c.inputs.kv_cache.shape[0] > 0);
    if (cuda::has_edges(c.inputs, c.outputs)) return cuda::find_instance({kEdges}, with_edges(asked));
    if (cuda::merges_in_kernel(c.problem, c.geometry)) {
      return cuda::find_instance({kMergingFewRows, kMergingFewRowsE4m3, kMergingFewRows584, kTeams,
                                  kE4m3Teams, kRows64Instances, kRecords},
                                 asked);
    }
    return cuda::find_instance({kFewRows, kFewRowsE4m3, kFewRows584, kAlone584, kTeams, kE4m3Teams,
                                kRows64Instances, kRecords, kTurns},
                               asked);
  });
}

}  // namespace flashlatent::fp8
