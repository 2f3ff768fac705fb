#include "cuda/sm90/kernels/mla_64_pingpong/any_team.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"
#include "cuda/sm90/load/rows_at_once.cuh"

namespace flashlatent::mla_64_pingpong {

namespace {

template <class Loader>
constexpr cuda::DenseInstance any_team(cuda::InstanceKey key) {
  using Shape = Config<Bf16, 512, 512, 1, Loader, kMostTeam>;
  return {key,
          cuda::compiled_kernel<team_kernel<Shape>, Shape, SharedMemory<Shape>>(),
          {.query_rows = kTileRows}};
}

}  // namespace

constinit const std::array<cuda::DenseInstance, kAnyTeamKeys.size()> kAnyTeams = cuda::of_keys(
    kAnyTeamKeys,
    std::array<cuda::DenseInstance, kAnyTeamKeys.size()>{
        {any_team<sm90::Fp8_584AtOnce>(any_team_key()), any_team<sm90::RecordsAtOnce>(records_team_key())}});

}  // namespace flashlatent::mla_64_pingpong
