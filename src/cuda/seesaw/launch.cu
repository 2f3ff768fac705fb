#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/seesaw/instances.h"

namespace flashlatent::cuda {

namespace {

// Costs in nanoseconds: a block at 32 to 64 heads, 5 us from the last block to the last byte, 2 from Q to the
// first scores.
constexpr DenseShape kShape = {
    .tile_rows = 64, .cost = {.per_block = 2200, .per_split = 7000, .per_call = 1500, .per_merge = 12000}};

// From an fp8_656 cache conversion is what takes time.
constexpr DenseShape kShapeFp8 = {
    .tile_rows = 64, .cost = {.per_block = 3400, .per_split = 7000, .per_call = 3500, .per_merge = 9000}};

const DenseInstance* find(const DecodeProblem& problem, Loading loading, int cluster) {
  const auto& cache = problem.cache;
  return find_instance({seesaw::kInstances576x512, seesaw::kInstances512x512, seesaw::kInstances320x256,
                        seesaw::kInstancesFp8_656},
                       {cache.dtype, cache.qk_dim, cache.v_dim, kShape.tile_rows, loading, cluster});
}

/// Neighbouring lanes may share KV blocks if they are tiles of the same KV head, and do where loading is what
/// binds: token by token from an fp8_656 cache, and by boxes of less than 64 tokens (page 16: 0.287 ms
/// against 0.302 alone). By whole tiles each loads its own: 0.2501 against 0.2566 in step with another CTA.
/// Not ragged ones: the second tile of a short request has no rows, and no blocks then.
int cluster_of(const DecodeProblem& problem, const schedule::Geometry& g, Loading loading) {
  if (loading == Loading::kTokens || (loading == Loading::kBoxes && problem.cache.page_size % 64 == 0))
    return 1;
  const int row_tiles = (problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows;
  return g.lanes % 2 == 0 && row_tiles % 2 == 0 && !problem.query.ragged ? 2 : 1;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.cache.layout != KvLayout::kLatent) return not_latent(problem);
  if (find(problem, loading_of(problem), 1) == nullptr) return unknown_dimensions(problem);
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  return dense_geometry(problem, workers, problem.cache.format == KvFormat::kFp8_656 ? kShapeFp8 : kShape);
}

Status launch(const DecodeCall& call) {
  return launch_dense(call, [](const DecodeCall& c, Loading loading) {
    return find(c.problem, loading, cluster_of(c.problem, c.geometry, loading));
  });
}

}  // namespace

const DecodeKernel kSeesawKernel = {
    .name = "seesaw",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, fp8_656; dense and sparse, any "
        "heads, tokens and page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = launch,
};

}  // namespace flashlatent::cuda
