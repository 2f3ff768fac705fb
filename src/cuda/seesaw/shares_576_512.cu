#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

namespace {
template <class Element>
constexpr cuda::DenseInstance share_instance(Dtype dtype) {
  return instance<Element, 576, 512, 1, parts::TmaLoader, 1, true>(dtype, cuda::Loading::kBoxes);
}
}  // namespace

constinit const ShareInstances kShares576x512 = {
    {share_instance<__nv_bfloat16>(Dtype::kBF16), share_instance<__half>(Dtype::kF16)}};

}  // namespace flashlatent::seesaw
