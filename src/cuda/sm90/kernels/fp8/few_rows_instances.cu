#include "cuda/sm90/kernels/fp8/few_rows_kernel.cuh"
#include "cuda/sm90/kernels/fp8/instances.h"

namespace flashlatent::fp8 {

namespace {
template <int kRows, bool kMerges, int kTeam = 1>
constexpr cuda::DenseInstance fp8_656_instance() {
  using Shape = few_rows::Config<kRows, kMerges, kTeam>;
  return {key(kRows, kTeam),
          cuda::compiled_kernel<few_rows::kernel<Shape>, Shape, few_rows::SharedMemory<Shape>>(),
          {},
          kMerges};
}

template <bool kMerges>
constexpr FewRowsInstances fp8_656_instances() {
  return {{fp8_656_instance<8, kMerges>(), fp8_656_instance<16, kMerges>(), fp8_656_instance<32, kMerges>()}};
}
}  // namespace

constinit const FewRowsInstances kFewRows = cuda::of_keys(kFewRowsKeys, fp8_656_instances<false>());
constinit const FewRowsInstances kMergingFewRows = cuda::of_keys(kFewRowsKeys, fp8_656_instances<true>());
constinit const TeamInstances kTeams =
    cuda::of_keys(kTeamKeys, TeamInstances{{fp8_656_instance<kTeamRows, false, kTeamCtas>()}});

}  // namespace flashlatent::fp8
