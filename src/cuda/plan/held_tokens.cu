// plan/held_tokens.h on the device: one thread for each query token.
#include "plan/held_tokens.h"

#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"

namespace flashlatent::cuda {

namespace holding_tokens {

namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    held_tokens_kernel(const __grid_constant__ schedule::HeldShape shape, const std::int32_t* contexts,
                       std::int64_t stride, TokenSpan* spans, std::int32_t* lengths) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto request = static_cast<std::int32_t>(index / shape.query_tokens);
  if (request >= shape.requests) return;
  const auto later = static_cast<std::int32_t>(index - std::int64_t{request} * shape.query_tokens);
  const std::int32_t context = contexts[request * stride];
  spans[index] = schedule::held_span(shape, context, later);
  if (later == 0) lengths[request] = shape.shard.held(context);
}

}  // namespace

}  // namespace holding_tokens

Status hold_tokens(const schedule::HeldShape& shape, const ConstTensorView& contexts, void* memory,
                   const Executor& executor) {
  using namespace holding_tokens;
  if (shape.requests == 0) return {};
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  const std::int64_t blocks = (std::int64_t{shape.requests} * shape.query_tokens + kThreads - 1) / kThreads;
  if (blocks > kMostBlocks) return too_many_blocks(blocks);
  LaunchShape launch_shape;
  launch_shape.blocks = static_cast<int>(blocks);
  launch_shape.threads = kThreads;
  const schedule::HeldTokens held = schedule::held_tokens(shape, memory);
  return launch(held_tokens_kernel, launch_shape, executor, shape,
                static_cast<const std::int32_t*>(contexts.data), contexts.strides[0],
                const_cast<TokenSpan*>(held.spans), const_cast<std::int32_t*>(held.lengths));
}

}  // namespace flashlatent::cuda
