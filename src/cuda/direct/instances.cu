#include "cuda/direct/instances.h"
#include "cuda/direct/kernel.cuh"

namespace flashlatent::direct {

namespace {
template <int kRows, int kTeam = 1>
constexpr cuda::DenseInstance instance() {
  using Shape = Config<kRows, kTeam>;
  return {{Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, Shape::kRows, cuda::Loading::kFp8, 1, kTeam},
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>(),
          {},
          Shape::kMerges};
}
}  // namespace

constinit const Instances kInstances = {{instance<8>(), instance<16>(), instance<32>()}};
constinit const TeamInstances kTeams = {{instance<kTeamRows, kTeamCtas>()}};

}  // namespace flashlatent::direct
