#include "cuda/direct/choice.h"

#include <algorithm>
#include <iterator>

#include "core/message.h"
#include "cost/table.h"
#include "cuda/common/dense_choice.h"
#include "cuda/common/if_compiled.h"
#include "cuda/cuda_backend.h"

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;

constexpr DenseShape kShapes[] = {{.tile_rows = 8, .cost = cost::of(Kernel::kDirect, Situation::kRows8)},
                                  {.tile_rows = 16, .cost = cost::of(Kernel::kDirect, Situation::kRows16)},
                                  {.tile_rows = 32, .cost = cost::of(Kernel::kDirect, Situation::kRows32)}};
// By two tiles of 32 rows 64 would take longer than by the 64-row kernel.
constexpr int kMostRows = std::end(kShapes)[-1].tile_rows;

/// The smallest tile for the problem's rows.
const DenseShape& shape_of(const DecodeProblem& problem) {
  const auto* shape = kShapes;
  while (shape->tile_rows < std::min(problem.rows_per_kv_head(), kMostRows)) ++shape;
  return *shape;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kFp8_656})) return reason;
  if (problem.rows_per_kv_head() > kMostRows) return too_many_rows(problem, kMostRows);
  if (!is_listed({direct::kKeys}, direct::key_of(problem, loading_of(problem))))
    return unknown_dimensions(problem);
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  return dense_geometry(problem, workers, shape_of(problem));
}

}  // namespace

const DecodeKernel kDirectKernel = {
    .name = "direct",
    .backend = Backend::kCuda,
    .takes = "fp8_656 caches, dense and sparse, up to 32 query rows a KV head, any page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(direct::launch),
};

}  // namespace flashlatent::cuda

namespace flashlatent::direct {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading) {
  const auto& cache = problem.cache;
  return {cache.dtype, cache.qk_dim, cache.v_dim, cuda::shape_of(problem).tile_rows, loading};
}

}  // namespace flashlatent::direct
