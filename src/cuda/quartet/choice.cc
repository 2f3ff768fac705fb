#include "cuda/quartet/choice.h"

#include "core/message.h"
#include "cost/model.h"
#include "cuda/common/dense_choice.h"
#include "cuda/common/if_compiled.h"
#include "cuda/cuda_backend.h"

namespace flashlatent::quartet {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading) {
  const auto& cache = problem.cache;
  return {cache.dtype, cache.qk_dim, cache.v_dim, kTileRows, loading};
}

}  // namespace flashlatent::quartet

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;

constexpr DenseShape kShape = {.tile_rows = quartet::kTileRows,
                               .cost = cost::of(Kernel::kQuartet, Situation::kRows64)};
constexpr int kFewRequests = 2;

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kFp8_656})) return reason;
  if (!is_listed({quartet::kKeys}, quartet::key_of(problem, loading_of(problem))))
    return unknown_dimensions(problem);
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  schedule::Geometry g = dense_geometry(problem, workers, kShape);
  if (problem.rows_per_kv_head() > quartet::kTileRows) {
    cost::add(g.cost, cost::of(Kernel::kQuartet, Situation::kMoreTiles));
  } else if (g.requests <= kFewRequests) {
    cost::add(g.cost, cost::of(Kernel::kQuartet, Situation::kFewRequests));
  }
  return g;
}

}  // namespace

const DecodeKernel kQuartetKernel = {
    .name = "quartet",
    .backend = Backend::kCuda,
    .takes = "fp8_656 caches, dense and sparse, any number of query rows, any page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(quartet::launch),
};

}  // namespace flashlatent::cuda
