#include "cuda/sm90/kernels/fp8/few_rows_kernel.cuh"
#include "cuda/sm90/kernels/fp8/instances.h"

namespace flashlatent::fp8 {

namespace {
template <int kRows, bool kMerges, bool kAlone = false>
constexpr cuda::DenseInstance fp8_584_instance() {
  using Shape = few_rows::Config<kRows, kMerges, 1, Tokens::kRopeRecords, kAlone>;
  return {fp8_584_key(kRows, kAlone),
          cuda::compiled_kernel<few_rows::kernel<Shape>, Shape, few_rows::SharedMemory<Shape>>(),
          {},
          kMerges};
}

template <bool kMerges, bool kAlone = false>
constexpr FewRows584Instances fp8_584_instances() {
  return {{fp8_584_instance<8, kMerges, kAlone>(), fp8_584_instance<16, kMerges, kAlone>(),
           fp8_584_instance<32, kMerges, kAlone>()}};
}
}  // namespace

constinit const FewRows584Instances kFewRows584 = cuda::of_keys(kFewRows584Keys, fp8_584_instances<false>());
constinit const FewRows584Instances kMergingFewRows584 =
    cuda::of_keys(kFewRows584Keys, fp8_584_instances<true>());
constinit const FewRows584Instances kAlone584 =
    cuda::of_keys(kAlone584Keys, fp8_584_instances<false, true>());

}  // namespace flashlatent::fp8
