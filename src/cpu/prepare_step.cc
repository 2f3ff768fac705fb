// prepare_step() on the host: rows one by one, on threads.
#include <span>

#include "core/step_tokens.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"

namespace flashlatent::cpu {

Status prepare_step(const step_tokens::Call& call, const Executor& executor) {
  using namespace step_tokens;
  const Query& query = call.query;
  const std::span<const Cache> caches(call.cache, call.caches);
  const int threads = executor.threads > 0 ? executor.threads : hardware_threads();
  parallel_for(query.rows, threads, [&](std::int64_t row) {
    const Place place = place_of(query, row);
    if (call.positions != nullptr) call.positions[row] = place.position < 0 ? 0 : place.position;
    for (const Cache& cache : caches) {
      write_row(cache, place, row);
      for (std::int32_t i = 0; i < cache.count; ++i) write_index(cache, place, row, i);
    }
  });
  for (const Cache& cache : caches) {
    for (std::int32_t request = 0; request < query.batch; ++request) write_request(cache, query, request);
  }
  return {};
}

}  // namespace flashlatent::cpu
