#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

constinit const TeamInstances kTeams2Bf16 = team_instances<__nv_bfloat16, 576, 512, 2>(Dtype::kBF16);
constinit const TeamInstances kTeams2Fp16 = team_instances<__half, 576, 512, 2>(Dtype::kF16);
constinit const TeamInstances kTeams4Bf16 = team_instances<__nv_bfloat16, 576, 512, 4>(Dtype::kBF16);
constinit const TeamInstances kTeams4Fp16 = team_instances<__half, 576, 512, 4>(Dtype::kF16);
constinit const TeamInstances kTeams8Bf16 = team_instances<__nv_bfloat16, 576, 512, 8>(Dtype::kBF16);
constinit const TeamInstances kTeams8Fp16 = team_instances<__half, 576, 512, 8>(Dtype::kF16);

}  // namespace flashlatent::seesaw
