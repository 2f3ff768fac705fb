// prepare_step() on the host: rows one by one, on threads.
#include <span>

#include "core/message.h"
#include "core/return_if_error.h"
#include "core/step_tokens.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"

namespace flashlatent::cpu {

namespace {

/// Do query tokens begin at 0 and never fall, up to the rows that there are?
Status check_begins(const step_tokens::Query& query) {
  for (std::int32_t i = 0; query.begins != nullptr && i <= query.batch; ++i) {
    const std::int64_t least = i == 0 ? 0 : query.begins[i - 1], most = i == 0 ? 0 : query.rows;
    if (query.begins[i] >= least && query.begins[i] <= most) continue;
    return invalid_argument("cu_seqlens_q[", i, "] is ", query.begins[i], "; ", least, " to ", most,
                            " is accepted: it begins with 0, never falls, and ends within the rows");
  }
  return {};
}

}  // namespace

Status prepare_step(const step_tokens::Call& call, const Executor& executor) {
  using namespace step_tokens;
  const Query& query = call.query;
  FLASHLATENT_RETURN_IF_ERROR(check_begins(query));
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
