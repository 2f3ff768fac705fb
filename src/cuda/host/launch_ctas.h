// Launch of compiled kernels.
#pragma once

#include <initializer_list>

#include "cuda/host/compiled_kernel.h"
#include "flashlatent/backend.h"

namespace flashlatent::cuda {

/// Launches `ctas` CTAs in clusters of `cluster`. On the device they wait for the previous launch.
/// `parameters`: addresses of the kernel's parameters, in order; more than it has are allowed.
Status launch_ctas(const CompiledKernel& kernel, int ctas, int cluster, const Executor& executor,
                   std::initializer_list<const void*> parameters);

}  // namespace flashlatent::cuda
