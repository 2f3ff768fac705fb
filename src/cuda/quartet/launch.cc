#include "cuda/common/dense_launch.h"
#include "cuda/quartet/choice.h"
#include "cuda/quartet/instances.h"

namespace flashlatent::quartet {

Status launch(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, cuda::Loading loading) {
    return cuda::find_instance({kInstances}, key_of(c.problem, loading));
  });
}

}  // namespace flashlatent::quartet
