// Launch of compiled kernels.
#pragma once

#include <initializer_list>

#include "cuda/common/compiled_kernel.h"
#include "flashlatent/backend.h"

namespace flashlatent::cuda {

/// `cluster` CTAs a cluster, which wait for the launch before them on the device. `parameters`: where the
/// kernel's are, in their order; there may be more than it takes.
Status launch_ctas(const CompiledKernel& kernel, int ctas, int cluster, const Executor& executor,
                   std::initializer_list<const void*> parameters);

}  // namespace flashlatent::cuda
