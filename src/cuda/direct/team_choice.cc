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

// From calls of 1 to 18 blocks a CTA, which take 6 us beside them; 3.3 more, since the other kernels are
// estimated above what small calls from this cache take them (4 of 4,096 to 16,384 tokens, 16 heads: 12.4,
// 16.3 and 23.2 us, by `direct` 12.2, 15.0 and 20.1; 12 of 4,096 18.4 and 18.8).
constexpr TeamShape kShape = {.tile_rows = direct::kTeamRows,
                              .team = direct::kTeamCtas,
                              .costs = {.call = 8950,
                                        .shared_merge = 2800,
                                        .lone_merge = 2800,
                                        .block_here = 1500,
                                        .block_alone = 1650,
                                        .block_streaming = 1650,
                                        .lone_request = -400}};

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (std::optional<std::string> reason = kDirectKernel.declines(problem)) return reason;
  if (problem.rows_per_kv_head() > kShape.tile_rows) return too_many_rows(problem, kShape.tile_rows);
  if (problem.options.batch_invariant) return not_invariant();
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
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
