#include "core/message.h"
#include "cuda/common/tensor_map.h"
#include "cuda/cuda_backend.h"
#include "cuda/trio/config.h"
#include "cuda/trio/instances.h"
#include "plan/host_plan.h"

namespace flashlatent::cuda {

namespace {

// Costs in nanoseconds, of each other as seesaw's, by which the plan cuts: from some 15 blocks a CTA on this
// kernel is faster. Of one row tile memory binds, and that one has more under way.
constexpr DenseShape kShape = {
    .tile_rows = 64, .cost = {.per_block = 2300, .per_split = 7300, .per_call = 3000, .per_merge = 11800}};
constexpr DenseShape kShapeOfTiles = {
    .tile_rows = 64, .cost = {.per_block = 1640, .per_split = 6800, .per_call = -1640, .per_merge = 11850}};

/// By which a call of one request and two row tiles is faster: of these seesaw has shares, whose costs are
/// its times.
constexpr std::int64_t kLoneRequest = 7000;

const DenseInstance* find(const DecodeProblem& problem, bool merges) {
  const auto& cache = problem.cache;
  return find_instance({trio::kInstances, trio::kMerging}, {.dtype = cache.dtype,
                                                            .qk_dim = cache.qk_dim,
                                                            .v_dim = cache.v_dim,
                                                            .tile_rows = kShape.tile_rows,
                                                            .loading = Loading::kBoxes,
                                                            .merges = merges});
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.cache.layout != KvLayout::kLatent) return not_latent(problem);
  if (problem.cache.format != KvFormat::kPlain)
    return message("the cache is fp8_656; a plain one is accepted");
  if (problem.sparse.enabled) return "decode is sparse; dense decode is accepted";
  if (problem.options.batch_invariant) return "batch_invariant is true; false is accepted";
  if (find(problem, false) == nullptr) {
    return message("qk_dim/v_dim is ", problem.cache.qk_dim, "/", problem.cache.v_dim,
                   "; 576/512 is accepted");
  }
  if (problem.cache.page_size % trio::kStageTokens != 0) {
    return message("page_size is ", problem.cache.page_size, "; a multiple of ", trio::kStageTokens,
                   " is accepted");
  }
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  const bool one_tile = problem.rows_per_kv_head() <= kShape.tile_rows;
  schedule::Geometry g = dense_geometry(problem, workers, one_tile ? kShape : kShapeOfTiles);
  if (!one_tile && g.lanes == 2 && g.requests == 1) g.cost.per_call -= kLoneRequest;
  return g;
}

/// What has no boxes is seesaw's, which shares out requests likewise: no pages, KV heads that do not begin at
/// whole chunks, query rows that do not lie in line; and outputs that 16 bytes cannot be stored to.
Status launch(const DecodeCall& call) {
  const ConstTensorView& cache = call.inputs.kv_cache;
  if (cache.shape[0] == 0 || !heads_in_chunks(cache) || !rows_in_line(call.problem, call.inputs.q) ||
      !check_alignment("out", call.outputs.out, 16).ok()) {
    return kSeesawKernel.launch(call);
  }
  return launch_dense(
      call, [](const DecodeCall& c, Loading) { return find(c.problem, merges_in_kernel(c.geometry)); });
}

}  // namespace

const DecodeKernel kTrioKernel = {
    .name = "trio",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, dense, any heads and tokens, pages of a multiple of "
        "32; no batch_invariant",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = launch,
};

}  // namespace flashlatent::cuda
