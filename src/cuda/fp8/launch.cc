#include "cuda/common/dense_launch.h"
#include "cuda/fp8/choice.h"
#include "cuda/fp8/instances.h"

namespace flashlatent::fp8 {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading) {
    const cuda::InstanceKey asked = key(c.geometry.tile_rows, c.geometry.team);
    const bool merges = cuda::merges_in_kernel(c.geometry);
    return cuda::find_instance({merges ? kMergingFewRows : kFewRows, kTeams, kRows64}, asked);
  });
}

}  // namespace flashlatent::fp8
