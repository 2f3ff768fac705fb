// The compiled instances of gqa_16, as rows of data.
#pragma once

#include "cuda/host/compiled_kernel.h"
#include "cuda/sm90/kernels/gqa_16/keys.h"

namespace flashlatent::gqa_16 {

struct Instance {
  InstanceKey key;
  cuda::CompiledKernel kernel;  // its parameter is Arguments
};

using Instances = std::array<Instance, kBf16Keys.size()>;

// e4m3 in a file of its own: they compile side by side.
extern const Instances kBf16, kFp16, kE4m3;

}  // namespace flashlatent::gqa_16
