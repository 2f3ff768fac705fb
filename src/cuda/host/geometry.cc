#include "cuda/host/geometry.h"

#include <algorithm>

#include "cuda/sm90/walk/merge_room.h"
#include "plan/geometries.h"

namespace flashlatent::cuda {

std::int32_t reach_of(const DecodeProblem& problem) {
  const std::int64_t reach = problem.sparse.enabled
                                 ? problem.sparse.topk
                                 : std::int64_t{problem.cache.max_pages} * problem.cache.page_size;
  return static_cast<std::int32_t>(std::min<std::int64_t>(reach, kMostDeviceTokens));
}

std::int32_t tokens_in_window(const DecodeProblem& problem, int block_tokens) {
  const int window = problem.options.window;
  if (window == 0) return reach_of(problem);
  const std::int64_t seen = std::int64_t{window} + problem.query.tokens - 1 + block_tokens;
  return static_cast<std::int32_t>(std::min<std::int64_t>(reach_of(problem), seen));
}

std::int64_t partial_rows(const schedule::Geometry& g) {
  return schedule::max_partials(g) * g.lanes * g.tile_rows;
}

std::size_t decode_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  std::int64_t rows = partial_rows(g);
  // The line leaves at most two partial results a multiprocessor.
  if (!problem.options.batch_invariant) rows = std::max(rows, std::int64_t{2} * kMostSms * g.tile_rows);
  return rows == 0 ? 0 : sm90::kMergeStateBytes + rows * (problem.cache.v_dim + 1) * sizeof(float);
}

schedule::Geometry geometry_of_call(const DecodeProblem& problem, const DecodeInputs& inputs,
                                    const schedule::Geometry& planned) {
  if (!problem.sparse.enabled || inputs.topk_length.present() || inputs.extra_topk_length.present() ||
      inputs.extra_cache_seqlens.present() || planned.partition != schedule::Partition::kLine)
    return planned;
  const std::optional<schedule::Geometry> whole = schedule::whole_items(planned);
  return whole && schedule::estimate(*whole) <= schedule::estimate(planned) ? *whole : planned;
}

}  // namespace flashlatent::cuda
