// The direct kernel by teams, for calls too small to fill the device.
#include "cuda/common/if_compiled.h"
#include "cuda/common/teams.h"
#include "cuda/cuda_backend.h"
#include "cuda/direct/choice.h"

namespace flashlatent::direct {

cuda::InstanceKey team_key_of(const DecodeProblem& problem, cuda::Loading loading) {
  const auto& cache = problem.cache;
  return {cache.dtype, cache.qk_dim, cache.v_dim, kTeamRows, loading, 1, kTeamCtas};
}

}  // namespace flashlatent::direct

namespace flashlatent::cuda {

namespace {

constexpr TeamShape kShape = {.tile_rows = direct::kTeamRows,
                              .team = direct::kTeamCtas,
                              .costs = cost::of_teams(cost::Kernel::kDirectTeam8)};

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (std::optional<std::string> reason = kDirectKernel.declines(problem)) return reason;
  if (problem.rows_per_kv_head() > kShape.tile_rows) return too_many_rows(problem, kShape.tile_rows);
  if (problem.options.batch_invariant) return not_invariant();
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  return team_geometry(problem, workers, kShape);
}

}  // namespace

const DecodeKernel kDirectTeam8Kernel = {
    .name = "direct_team8",
    .backend = Backend::kCuda,
    .takes =
        "fp8_656 caches, up to 16 query rows a KV head, for small batches; dense and sparse, any page "
        "size; not with batch_invariant",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = team_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(direct::launch_teams),
};

}  // namespace flashlatent::cuda
