#include "cuda/quartet/choice.h"

#include "core/message.h"
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

// Costs in nanoseconds; those of a call from times beside seesaw's: this one is faster above some 2 blocks a
// CTA, with more than two requests also of one and two, and with two row tiles, of which that one's clusters
// share the conversion, above some 10.
constexpr DenseShape kShape = {
    .tile_rows = quartet::kTileRows,
    .cost = {.per_block = 2100, .per_split = 8400, .per_call = 4000, .per_merge = 8300}};
constexpr int kFewRequests = 2;
constexpr int kOfFewRequests = 2300, kOfTwoTiles = 12800;  // more a call

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.cache.layout != KvLayout::kLatent) return not_latent(problem);
  if (problem.cache.format != KvFormat::kFp8_656) {
    return message("the cache is of ", to_string(problem.cache.dtype), "; fp8_656 is accepted");
  }
  if (!is_listed({quartet::kKeys}, quartet::key_of(problem, loading_of(problem))))
    return unknown_dimensions(problem);
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  schedule::Geometry g = dense_geometry(problem, workers, kShape);
  if (problem.rows_per_kv_head() > quartet::kTileRows) {
    g.cost.per_call += kOfTwoTiles;
  } else if (g.requests <= kFewRequests) {
    g.cost.per_call += kOfFewRequests;
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
