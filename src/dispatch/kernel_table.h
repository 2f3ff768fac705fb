// The kernels of this build.
#pragma once

#include <span>

#include "kernel/decode_kernel.h"

namespace flashlatent {

/// All kernels; of two whose estimates are equal the first is preferred.
std::span<const DecodeKernel> decode_kernels();

}  // namespace flashlatent
