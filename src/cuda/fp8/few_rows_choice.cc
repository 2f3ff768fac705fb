// Up to 32 query rows a KV head; of up to 16 by teams, too, for calls too small to fill the device.
#include <algorithm>
#include <array>

#include "cuda/common/if_compiled.h"
#include "cuda/common/teams.h"
#include "cuda/cuda_backend.h"
#include "cuda/fp8/choice.h"

namespace flashlatent::fp8 {

static_assert(fp8_656::kDim == e4m3_latent::kDim && fp8_656::kLatentDim == e4m3_latent::kLatentDim);

std::optional<std::string> declines_cache(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  if (auto reason = cuda::declines_tokens(problem, {KvFormat::kFp8_656, KvFormat::kE4m3})) return reason;
  if (cache.qk_dim != fp8_656::kDim || cache.v_dim != fp8_656::kLatentDim) {
    return cuda::unknown_dimensions(problem, "576/512 is");
  }
  return std::nullopt;
}

cuda::InstanceKey key_of(const DecodeProblem& problem, const schedule::Geometry& g, bool has_pages) {
  if (problem.cache.format == KvFormat::kFp8_584) return fp8_584_key(g.tile_rows);
  if (problem.cache.format != KvFormat::kE4m3) return key(g.tile_rows, g.team);
  const bool boxes = has_pages && !problem.sparse.enabled && problem.cache.page_size % kPageTokens == 0;
  return e4m3_key(g.tile_rows, boxes ? cuda::Loading::kBoxes : cuda::Loading::kTokens, g.team);
}

}  // namespace flashlatent::fp8

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;

using Shapes = std::array<DenseShape, 3>;
constexpr Shapes kShapes = {{{.tile_rows = 8, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRows8)},
                             {.tile_rows = 16, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRows16)},
                             {.tile_rows = 32, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRows32)}}};
constexpr Shapes kE4m3Shapes = {
    {{.tile_rows = 8, .cost = cost::of(Kernel::kFp8Rows32, Situation::kE4m3Rows8)},
     {.tile_rows = 16, .cost = cost::of(Kernel::kFp8Rows32, Situation::kE4m3Rows16)},
     {.tile_rows = 32, .cost = cost::of(Kernel::kFp8Rows32, Situation::kE4m3Rows32)}}};
// By two tiles of 32 rows 64 would take longer than by the 64-row kernel.
constexpr int kMostRows = kShapes.back().tile_rows;

constexpr TeamShape kTeamShape = {
    .tile_rows = fp8::kTeamRows, .team = fp8::kTeamCtas, .costs = cost::of_teams(Kernel::kFp8Rows16Team8)};
constexpr TeamShape kE4m3TeamShape = {
    .tile_rows = fp8::kTeamRows,
    .team = fp8::kTeamCtas,
    .costs = cost::of_teams(Kernel::kFp8Rows16Team8, Situation::kE4m3Teams)};

template <int kMost>
std::optional<std::string> declines(const DecodeProblem& problem) {
  std::optional<std::string> reason = fp8::declines_cache(problem);
  if (!reason && problem.rows_per_kv_head() > kMost) reason = too_many_rows(problem, kMost);
  return reason;
}

std::optional<std::string> teams_decline(const DecodeProblem& problem) {
  std::optional<std::string> reason = declines<fp8::kTeamRows>(problem);
  if (!reason && problem.options.batch_invariant) reason = not_invariant();
  return reason;
}

/// By the smallest tile for the problem's rows.
schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const DenseShape* shape = (fp8::is_e4m3(problem) ? kE4m3Shapes : kShapes).data();
  while (shape->tile_rows < std::min(problem.rows_per_kv_head(), kMostRows)) ++shape;
  return dense_geometry(problem, workers, *shape);
}

schedule::Geometry geometry_of_teams(const DecodeProblem& problem, const schedule::Workers& workers) {
  return team_geometry(problem, workers, fp8::is_e4m3(problem) ? kE4m3TeamShape : kTeamShape);
}

}  // namespace

const DecodeKernel kFp8Rows32Kernel = {
    .name = "fp8_32",
    .backend = Backend::kCuda,
    .takes =
        "fp8_656 caches, and e4m3 latents of 576 with products in bf16 or fp8, dense and sparse, up to 32 "
        "query "
        "rows a KV head, any page size",
    .declines = declines<kMostRows>,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(fp8::launch),
};

const DecodeKernel kFp8Rows16Team8Kernel = {
    .name = "fp8_16_team8",
    .backend = Backend::kCuda,
    .takes =
        "fp8_656 caches, and e4m3 latents of 576, up to 16 query rows a KV head, for small batches; dense "
        "and "
        "sparse, any page size; not with batch_invariant",
    .declines = teams_decline,
    .geometry = geometry_of_teams,
    .workspace_bytes = team_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(fp8::launch),
};

}  // namespace flashlatent::cuda
