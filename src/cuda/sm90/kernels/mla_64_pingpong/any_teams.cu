#include "cuda/sm90/kernels/mla_64_pingpong/any_team.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"
#include "cuda/sm90/load/fp8_584_at_once.cuh"

namespace flashlatent::mla_64_pingpong {

namespace {

using AnyTeam = Config<Bf16, 512, 512, 1, sm90::Fp8_584AtOnce, kMostTeam>;

}  // namespace

constinit const std::array<cuda::DenseInstance, kAnyTeamKeys.size()> kAnyTeams = cuda::of_keys(
    kAnyTeamKeys, std::array<cuda::DenseInstance, kAnyTeamKeys.size()>{
                      {{any_team_key(),
                        cuda::compiled_kernel<team_kernel<AnyTeam>, AnyTeam, SharedMemory<AnyTeam>>(),
                        {.query_rows = kTileRows}}}});

}  // namespace flashlatent::mla_64_pingpong
