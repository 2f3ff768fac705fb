#include "cuda/parts/fp8_register_loader.cuh"
#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

namespace {
template <Parts kParts>
constexpr Fp8ShareInstances fp8_share_instances() {
  return {{instance<__nv_bfloat16, 576, 512, 2, parts::Fp8RegisterLoader<2>, 1, kParts>(
      Dtype::kBF16, cuda::Loading::kFp8)}};
}
}  // namespace

constinit const Fp8ShareInstances kEvenFp8_656 = fp8_share_instances<Parts::kEven>();
constinit const Fp8ShareInstances kByLengthFp8_656 = fp8_share_instances<Parts::kByLength>();

}  // namespace flashlatent::seesaw
