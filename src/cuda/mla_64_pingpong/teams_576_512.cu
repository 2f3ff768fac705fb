#include "cuda/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

constinit const TeamInstances kTeams576x512 = cuda::of_keys(
    kTeamKeys576x512,
    TeamInstances{{team_instance<__nv_bfloat16, 2>(Dtype::kBF16), team_instance<__half, 2>(Dtype::kF16),
                   team_instance<__nv_bfloat16, 4>(Dtype::kBF16), team_instance<__half, 4>(Dtype::kF16),
                   team_instance<__nv_bfloat16, 8>(Dtype::kBF16), team_instance<__half, 8>(Dtype::kF16)}});

}  // namespace flashlatent::mla_64_pingpong
