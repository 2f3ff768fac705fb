#include "cuda/sm90/kernels/mla_64_pingpong/instance.cuh"

namespace flashlatent::mla_64_pingpong {

namespace {

/// A team's blocks are loaded by boxes only.
template <class Element, int kTeam>
constexpr cuda::DenseInstance team_instance(Dtype dtype) {
  return instance<Element, 576, 512, 1, TmaLoader, kTeam>(dtype, Loading::kBoxes);
}

}  // namespace

constinit const TeamInstances kTeams576x512 =
    cuda::of_keys(kTeamKeys576x512,
                  TeamInstances{{team_instance<Bf16, 2>(Dtype::kBF16), team_instance<Fp16, 2>(Dtype::kF16),
                                 team_instance<Bf16, 4>(Dtype::kBF16), team_instance<Fp16, 4>(Dtype::kF16),
                                 team_instance<Bf16, 8>(Dtype::kBF16), team_instance<Fp16, 8>(Dtype::kF16)}});

}  // namespace flashlatent::mla_64_pingpong
