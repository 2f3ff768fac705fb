#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/seesaw/instances.h"

namespace flashlatent::cuda {

namespace {

// Costs in nanoseconds: a block at 32 to 64 heads, 5 us from the last block to the last byte, 2 from Q to the
// first scores.
constexpr DenseShape kShape = {
    .tile_rows = 64, .cost = {.per_block = 2200, .per_split = 7000, .per_call = 3500, .per_merge = 9000}};

const DenseInstance* find_instance(const DecodeProblem& problem, bool by_token, int cluster) {
  for (const auto* shape :
       {&seesaw::kInstances576x512, &seesaw::kInstances512x512, &seesaw::kInstances320x256}) {
    for (const DenseInstance& instance : *shape) {
      if (instance.dtype == problem.cache.dtype && instance.qk_dim == problem.cache.qk_dim &&
          instance.v_dim == problem.cache.v_dim && instance.by_token == by_token &&
          instance.cluster == cluster) {
        return &instance;
      }
    }
  }
  return nullptr;
}

/// Neighbouring lanes share KV blocks if they are tiles of the same KV head. Not ragged ones: the second tile
/// of a short request has no rows, and no blocks then.
int cluster_of(const DecodeProblem& problem, const schedule::Geometry& g) {
  const int row_tiles = (problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows;
  return g.lanes % 2 == 0 && row_tiles % 2 == 0 && !problem.query.ragged ? 2 : 1;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.sparse.enabled) return "sparse decode is not accepted";
  if (problem.cache.format != KvFormat::kPlain) return "an fp8_656 cache is not accepted";
  if (find_instance(problem, false, 1) == nullptr) {
    return message("qk_dim/v_dim is ", problem.cache.qk_dim, "/", problem.cache.v_dim,
                   "; 576/512, 512/512 and 320/256 are accepted");
  }
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  return dense_geometry(problem, workers, kShape);
}

Status launch(const DecodeCall& call) {
  return launch_dense(call, [](const DecodeCall& c, bool by_token) {
    return find_instance(c.problem, by_token, by_token ? 1 : cluster_of(c.problem, c.geometry));
  });
}

}  // namespace

const DecodeKernel kSeesawKernel = {
    .name = "seesaw",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches, qk_dim/v_dim 576/512, 512/512 or 320/256, any heads, tokens and page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = dense_workspace_bytes,
    .launch = launch,
};

}  // namespace flashlatent::cuda
