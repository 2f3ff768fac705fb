#include "cuda/host/dense_launch.h"
#include "cuda/sm90/kernels/mla_64_e4m3/instances.h"
#include "cuda/sm90/kernels/mla_64_e4m3/takes.h"

namespace flashlatent::mla_64_e4m3 {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading) {
    return cuda::find_instance({kInstances, kTurnsInstances},
                               key_of(c.problem, c.geometry, c.inputs.kv_cache.shape[0] > 0));
  });
}

}  // namespace flashlatent::mla_64_e4m3
