#include "cuda/direct/instances.h"
#include "cuda/direct/kernel.cuh"

namespace flashlatent::direct {

namespace {
template <int kRows, bool kMerges, int kTeam = 1>
constexpr cuda::DenseInstance instance() {
  using Shape = Config<kRows, kMerges, kTeam>;
  return {{Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, Shape::kRows, cuda::Loading::kFp8, 1, kTeam},
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>(),
          {},
          kMerges};
}

template <bool kMerges>
constexpr Instances instances() {
  return {{instance<8, kMerges>(), instance<16, kMerges>(), instance<32, kMerges>()}};
}
}  // namespace

constinit const Instances kInstances = cuda::of_keys(kKeys, instances<false>());
constinit const Instances kMerging = cuda::of_keys(kKeys, instances<true>());
constinit const TeamInstances kTeams =
    cuda::of_keys(kTeamKeys, TeamInstances{{instance<kTeamRows, false, kTeamCtas>()}});

}  // namespace flashlatent::direct
