#include "runtime/graph.h"

#if FLASHLATENT_WITH_CUDA
#include <cuda_runtime_api.h>

#include "core/return_if_error.h"
#include "cuda/host/runtime.h"
#endif

namespace flashlatent::runtime {

#if FLASHLATENT_WITH_CUDA

Graph::~Graph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
  if (graph_ != nullptr) cudaGraphDestroy(static_cast<cudaGraph_t>(graph_));
}

Status Graph::capture(const std::function<Status()>& call, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal),
                                              "cudaStreamBeginCapture"));
  Status status = call();
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(on, &graph);
  graph_ = graph;
  FLASHLATENT_RETURN_IF_ERROR(status);
  FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(error, "cudaStreamEndCapture"));
  cudaGraphExec_t executable = nullptr;
  FLASHLATENT_RETURN_IF_ERROR(
      cuda::to_status(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate"));
  executable_ = executable;
  return {};
}

Status Graph::launch(void* stream) {
  return cuda::to_status(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), static_cast<cudaStream_t>(stream)),
      "cudaGraphLaunch");
}

#else

Graph::~Graph() = default;

Status Graph::capture(const std::function<Status()>& /*call*/, void* /*stream*/) {
  return {StatusCode::kUnavailable, "this build has no CUDA, and so no graphs"};
}

Status Graph::launch(void* /*stream*/) {
  return {StatusCode::kUnavailable, "this build has no CUDA, and so no graphs"};
}

#endif

}  // namespace flashlatent::runtime
