// The table of kernels of every backend.
#pragma once

#include <span>

#include "kernel/decode_kernel.h"

namespace flashlatent {

/// All kernels, also those without a launch in this build. The first of kernels with
/// equal estimates is picked. The last row is the oracle.
std::span<const DecodeKernel> decode_kernels();

}  // namespace flashlatent
