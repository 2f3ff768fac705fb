#include "dispatch/kernel_table.h"

#include "cpu/cpu_backend.h"
#include "cuda/cuda_backend.h"

namespace flashlatent {

std::span<const DecodeKernel> decode_kernels() {
  static const DecodeKernel kTable[] = {
      cuda::kMla16TransposedKernel, cuda::kMla16Team4Kernel,
      cuda::kMla16Team8Kernel,      cuda::kMla16Team16Kernel,
      cuda::kMla16Kernel,           cuda::kMla64PingpongKernel,
      cuda::kMla64TeamKernel,       cuda::kMla64RolesKernel,
      cuda::kFp8Rows32Kernel,       cuda::kFp8Rows16Team8Kernel,
      cuda::kFp8Rows64Kernel,       cuda::kE4m3Kernel,
      cuda::kGqa16Kernel,           cuda::kGqa128SplitKernel,
      cuda::kGqa128Kernel,          cpu::kDenseKernel,
      cpu::kReferenceKernel,
  };
  return kTable;
}

}  // namespace flashlatent
