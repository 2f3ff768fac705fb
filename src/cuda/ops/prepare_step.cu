// prepare_step() on the device: a CTA has a row, its threads the row's indices. CTAs past the rows have
// requests, one for each thread.
#include "core/step_tokens.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"

namespace flashlatent::cuda {

namespace preparing_step {

namespace {

using namespace step_tokens;

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) prepare_step_kernel(const __grid_constant__ Call call) {
  const Query& query = call.query;
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = blockIdx.x;
  if (row >= query.rows) {
    const std::int64_t request = (row - query.rows) * kThreads + thread;
    if (request >= query.batch) return;
    for (int i = 0; i < call.caches; ++i) {
      write_request(call.cache[i], query, static_cast<std::int32_t>(request));
    }
    return;
  }
  const Place place = place_of(query, row);
  if (thread == 0 && call.positions != nullptr) {
    call.positions[row] = place.position < 0 ? 0 : place.position;
  }
  for (int i = 0; i < call.caches; ++i) {
    const Cache& cache = call.cache[i];
    if (thread == i) write_row(cache, place, row);
    for (int k = thread; k < cache.count; k += kThreads) write_index(cache, place, row, k);
  }
}

}  // namespace

}  // namespace preparing_step

Status prepare_step(const step_tokens::Call& call, const Executor& executor) {
  using namespace preparing_step;
  const DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  const std::int64_t blocks = call.query.rows + (call.query.batch + kThreads - 1) / kThreads;
  if (blocks > kMostBlocks) return too_many_blocks(blocks);
  return launch(prepare_step_kernel, {.blocks = static_cast<int>(blocks), .threads = kThreads}, executor,
                call);
}

}  // namespace flashlatent::cuda
