#include "cuda/fp8/few_rows_kernel.cuh"
#include "cuda/fp8/instances.h"

namespace flashlatent::fp8 {

namespace {
template <int kRows, bool kMerges, int kTeam = 1>
constexpr cuda::DenseInstance instance() {
  using Shape = few_rows::Config<kRows, kMerges, kTeam>;
  return {key(kRows, kTeam),
          cuda::compiled_kernel<few_rows::kernel<Shape>, Shape, few_rows::SharedMemory<Shape>>(),
          {},
          kMerges};
}

template <bool kMerges>
constexpr FewRowsInstances instances() {
  return {{instance<8, kMerges>(), instance<16, kMerges>(), instance<32, kMerges>()}};
}
}  // namespace

constinit const FewRowsInstances kFewRows = cuda::of_keys(kFewRowsKeys, instances<false>());
constinit const FewRowsInstances kMergingFewRows = cuda::of_keys(kFewRowsKeys, instances<true>());
constinit const TeamInstances kTeams =
    cuda::of_keys(kTeamKeys, TeamInstances{{instance<kTeamRows, false, kTeamCtas>()}});

}  // namespace flashlatent::fp8
