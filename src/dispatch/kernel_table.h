// The kernels, of every backend.
#pragma once

#include <span>

#include "kernel/decode_kernel.h"

namespace flashlatent {

/// All kernels, also those that this build can only choose (DecodeKernel::launch); of two whose estimates are
/// equal the first is preferred.
std::span<const DecodeKernel> decode_kernels();

}  // namespace flashlatent
