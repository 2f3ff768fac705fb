#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/direct/instances.h"

namespace flashlatent::cuda {

namespace {

// Nanoseconds, of tiles of 16 and of 64 rows.
constexpr schedule::CostModel kCost16 = {
    .per_block = 1400, .per_split = 4000, .per_call = 3000, .per_merge = 7500};
constexpr schedule::CostModel kCost64 = {
    .per_block = 2000, .per_split = 6000, .per_call = 3000, .per_merge = 7500};

int tile_rows_of(const DecodeProblem& problem) {
  return problem.rows_per_kv_head() <= 16 ? 16 : 64;
}

const DenseInstance* find(const DecodeProblem& problem, Loading loading) {
  const auto& cache = problem.cache;
  return find_instance({direct::kInstances16, direct::kInstances64},
                       {cache.dtype, cache.qk_dim, cache.v_dim, tile_rows_of(problem), loading});
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
  const int tile_rows = tile_rows_of(problem);
  return dense_geometry(problem, workers,
                        {.tile_rows = tile_rows, .cost = tile_rows == 16 ? kCost16 : kCost64});
}

Status launch(const DecodeCall& call) {
  return launch_dense(call, [](const DecodeCall& c, Loading loading) { return find(c.problem, loading); });
}

}  // namespace

const DecodeKernel kDirectKernel = {
    .name = "direct",
    .backend = Backend::kCuda,
    .takes = "fp8_656 caches, dense and sparse, any heads, tokens and page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = launch,
};

}  // namespace flashlatent::cuda
