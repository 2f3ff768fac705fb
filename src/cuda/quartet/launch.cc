#include "core/message.h"
#include "cuda/common/dense.h"
#include "cuda/cuda_backend.h"
#include "cuda/quartet/instances.h"

namespace flashlatent::cuda {

namespace {

// Costs in nanoseconds; those of a call from times beside seesaw's: this one is faster above some 2 blocks a
// CTA, with more than two requests also of one and two, and with two row tiles, of which that one's clusters
// share the conversion, above some 10.
constexpr DenseShape kShape = {
    .tile_rows = 64, .cost = {.per_block = 2100, .per_split = 8400, .per_call = 4000, .per_merge = 8300}};
constexpr int kFewRequests = 2;
constexpr int kOfFewRequests = 2300, kOfTwoTiles = 12800;  // more a call

const DenseInstance* find(const DecodeProblem& problem, Loading loading) {
  const auto& cache = problem.cache;
  return find_instance({quartet::kInstances}, {.dtype = cache.dtype,
                                               .qk_dim = cache.qk_dim,
                                               .v_dim = cache.v_dim,
                                               .tile_rows = kShape.tile_rows,
                                               .loading = loading});
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.cache.layout != KvLayout::kLatent) return not_latent(problem);
  if (problem.cache.format != KvFormat::kFp8_656) {
    return message("the cache is of ", to_string(problem.cache.dtype), "; fp8_656 is accepted");
  }
  if (find(problem, loading_of(problem)) == nullptr) return unknown_dimensions(problem);
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  schedule::Geometry g = dense_geometry(problem, workers, kShape);
  if (problem.rows_per_kv_head() > kShape.tile_rows) {
    g.cost.per_call += kOfTwoTiles;
  } else if (g.requests <= kFewRequests) {
    g.cost.per_call += kOfFewRequests;
  }
  return g;
}

Status launch(const DecodeCall& call) {
  return launch_dense(call, [](const DecodeCall& c, Loading loading) { return find(c.problem, loading); });
}

}  // namespace

const DecodeKernel kQuartetKernel = {
    .name = "quartet",
    .backend = Backend::kCuda,
    .takes = "fp8_656 caches, dense and sparse, any number of query rows, any page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = launch,
};

}  // namespace flashlatent::cuda
