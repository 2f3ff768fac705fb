#include "runtime/unrounded_scales.h"

#include <algorithm>

#include "cuda/host/launch.h"

namespace flashlatent::runtime {

namespace {

__global__ void spread(const __grid_constant__ TokenScales scales, std::int64_t tokens) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < tokens;
       i += step) {
    scales.spread(i);
  }
}

}  // namespace

Status spread_scales_cuda(const TokenScales& scales, std::int64_t tokens, const Executor& executor) {
  const cuda::LaunchShape shape{.blocks = static_cast<int>(std::min<std::int64_t>(tokens / 256 + 1, 4096)),
                                .threads = 256};
  return cuda::launch(spread, shape, executor, scales, tokens);
}

}  // namespace flashlatent::runtime
