#include "cuda/common/dense_launch.h"
#include "cuda/direct/choice.h"
#include "cuda/direct/instances.h"

namespace flashlatent::direct {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading loading) {
    return cuda::find_instance({cuda::merges_in_kernel(c.geometry) ? kMerging : kInstances},
                               key_of(c.problem, loading));
  });
}

Status launch_teams(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading loading) {
    return cuda::find_instance({kTeams}, team_key_of(c.problem, loading));
  });
}

}  // namespace flashlatent::direct
