// mla_64_team with the edges of the layer in its own passes.
#include "cuda/sm90/kernels/mla_64_pingpong/any_team.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"
#include "cuda/sm90/load/rows_at_once.cuh"

namespace flashlatent::mla_64_pingpong {

namespace {

using EdgesTeam = Config<Bf16, 512, 512, 1, sm90::Fp8_584AtOnce, kMostTeam, false, false, true>;

}  // namespace

constinit const std::array<cuda::DenseInstance, kEdgesTeamKeys.size()> kEdgesTeams = cuda::of_keys(
    kEdgesTeamKeys, std::array<cuda::DenseInstance, kEdgesTeamKeys.size()>{
                        {{edges_team_key(),
                          cuda::compiled_kernel<team_kernel<EdgesTeam>, EdgesTeam, SharedMemory<EdgesTeam>>(),
                          {.query_rows = kTileRows}}}});

}  // namespace flashlatent::mla_64_pingpong
