// mla_64_team with the edges of the layer in its own passes.
#include "cuda/sm90/kernels/mla_64_pingpong/any_team.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"
#include "cuda/sm90/load/rows_at_once.cuh"

namespace flashlatent::mla_64_pingpong {

namespace {

template <class Loader>
constexpr cuda::DenseInstance edges_team(cuda::InstanceKey key) {
  using Shape = Config<Bf16, 512, 512, 1, Loader, kMostTeam, false, false, /*kEdges_=*/true>;
  return {with_edges(key),
          cuda::compiled_kernel<team_kernel<Shape>, Shape, SharedMemory<Shape>>(),
          {.query_rows = kTileRows}};
}

}  // namespace

constinit const std::array<cuda::DenseInstance, kEdgesTeamKeys.size()> kEdgesTeams =
    cuda::of_keys(kEdgesTeamKeys, std::array<cuda::DenseInstance, kEdgesTeamKeys.size()>{
                                      {edges_team<sm90::Fp8_584AtOnce>(any_team_key()),
                                       edges_team<sm90::RecordsAtOnce>(records_team_key())}});

}  // namespace flashlatent::mla_64_pingpong
