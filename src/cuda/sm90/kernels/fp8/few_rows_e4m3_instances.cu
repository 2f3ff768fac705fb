#include "cuda/host/atoms_map.h"
#include "cuda/sm90/kernels/fp8/few_rows_kernel.cuh"
#include "cuda/sm90/kernels/fp8/instances.h"

namespace flashlatent::fp8 {

namespace {
template <int kRows, bool kMerges, Tokens kTokens, int kTeam = 1>
constexpr cuda::DenseInstance instance() {
  using Shape = few_rows::Config<kRows, kMerges, kTeam, kTokens>;
  constexpr auto kLoading = Shape::kBoxes ? cuda::Loading::kBoxes : cuda::Loading::kTokens;
  return {.key = e4m3_key(kRows, kLoading, kTeam),
          .kernel =
              cuda::compiled_kernel<few_rows::kernel_with_map<Shape>, Shape, few_rows::SharedMemory<Shape>>(),
          .boxes = {.kv = cuda::kv_atoms_map, .query = nullptr},
          .merges = kMerges};
}

template <bool kMerges>
constexpr FewRowsE4m3Instances instances() {
  using enum Tokens;
  return {{instance<8, kMerges, kE4m3Boxes>(), instance<8, kMerges, kE4m3Tokens>(),
           instance<16, kMerges, kE4m3Boxes>(), instance<16, kMerges, kE4m3Tokens>(),
           instance<32, kMerges, kE4m3Boxes>(), instance<32, kMerges, kE4m3Tokens>()}};
}
}  // namespace

constinit const FewRowsE4m3Instances kFewRowsE4m3 = cuda::of_keys(kFewRowsE4m3Keys, instances<false>());
constinit const FewRowsE4m3Instances kMergingFewRowsE4m3 = cuda::of_keys(kFewRowsE4m3Keys, instances<true>());
constinit const E4m3TeamInstances kE4m3Teams = cuda::of_keys(
    kE4m3TeamKeys, E4m3TeamInstances{{instance<kTeamRows, false, Tokens::kE4m3Boxes, kTeamCtas>(),
                                      instance<kTeamRows, false, Tokens::kE4m3Tokens, kTeamCtas>()}});

}  // namespace flashlatent::fp8
