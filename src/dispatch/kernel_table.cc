#include "cpu/cpu_backend.h"
#include "dispatch/kernel.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace flashlatent {

std::span<const DecodeKernel> decode_kernels() {
  static const DecodeKernel kTable[] = {
#if FLASHLATENT_WITH_CUDA
    cuda::kEtapKernel,
    cuda::kEtapTeam8Kernel,
    cuda::kEtapTeam16Kernel,
    cuda::kSeesawKernel,
    cuda::kDirectKernel,
    cuda::kPagedKernel,
    cuda::kPrefillKernel,
#endif
    cpu::kDenseKernel,
    cpu::kReferenceKernel,
  };
  return kTable;
}

}  // namespace flashlatent
