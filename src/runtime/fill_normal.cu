#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/host/launch.h"
#include "runtime/bench_input.h"
#include "runtime/random_value.h"

namespace flashlatent::runtime {

namespace {

template <class Element>
__global__ void fill(Element* data, std::int64_t count, float scale, std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    data[i] = static_cast<Element>(scale * random_normal(seed, i));
  }
}

}  // namespace

Status fill_normal_cuda(void* data, std::int64_t count, Dtype dtype, float scale, std::uint64_t seed,
                        const Executor& executor) {
  const cuda::LaunchShape shape{.blocks = static_cast<int>(std::min<std::int64_t>(count / 256 + 1, 4096)),
                                .threads = 256};
  if (dtype == Dtype::kBF16) {
    return cuda::launch(fill<__nv_bfloat16>, shape, executor, static_cast<__nv_bfloat16*>(data), count, scale,
                        seed);
  }
  return cuda::launch(fill<__half>, shape, executor, static_cast<__half*>(data), count, scale, seed);
}

}  // namespace flashlatent::runtime
