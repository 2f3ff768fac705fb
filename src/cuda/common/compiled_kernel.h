// A compiled kernel as a row of data. Files of instances know no more of its launch than this, and read no
// header of the host's: beside its kernels a file took 8.4 s with them, and takes 4.4; an empty one 1.8.
#pragma once

#include <cstddef>

namespace flashlatent::cuda {

struct CompiledKernel {
  const void* (*function)();  ///< To call when it is launched: no constant expression makes one of a kernel.
  int threads;                ///< Of a CTA.
  std::size_t shared_bytes;   ///< Of dynamic shared memory.
};

/// CTAs of Config::kThreads threads with a Shared in shared memory.
template <auto kKernel, class Config, class Shared>
constexpr CompiledKernel compiled_kernel() {
  return {[] { return reinterpret_cast<const void*>(kKernel); }, Config::kThreads, sizeof(Shared)};
}

}  // namespace flashlatent::cuda
