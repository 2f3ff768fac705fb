#include "dispatch/kernel_table.h"

#include "cpu/cpu_backend.h"
#include "cuda/cuda_backend.h"

namespace flashlatent {

std::span<const DecodeKernel> decode_kernels() {
  static const DecodeKernel kTable[] = {
      cuda::kEtapKernel,        cuda::kMma16Team4Kernel, cuda::kMma16Team8Kernel, cuda::kMma16Team16Kernel,
      cuda::kMma16Kernel,       cuda::kSeesawKernel,     cuda::kTrioKernel,       cuda::kDirectKernel,
      cuda::kDirectTeam8Kernel, cuda::kQuartetKernel,    cuda::kE4m3Kernel,       cuda::kPagedKernel,
      cuda::kPaged128Kernel,    cuda::kPrefillKernel,    cpu::kDenseKernel,       cpu::kReferenceKernel,
  };
  return kTable;
}

}  // namespace flashlatent
