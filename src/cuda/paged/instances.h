// The compiled shapes of the paged kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/common/compiled_kernel.h"
#include "flashlatent/dtype.h"

namespace flashlatent::paged {

/// What a kernel is compiled for; Config says what the fields mean.
struct InstanceKey {
  Dtype dtype;
  int dim;
  int columns;
  bool fp8;
  bool packed;

  friend bool operator==(const InstanceKey&, const InstanceKey&) = default;
};

struct Instance {
  InstanceKey key;
  int warps;  // which take steps of so many tokens
  int step_tokens;
  cuda::CompiledKernel kernel;  // of Arguments
};

using DimInstances = std::array<Instance, 8>;  // 8 and 16 columns; plain and e4m3; rows and packed values

// One file each, so that they compile side by side.
extern const DimInstances kBf16x64, kBf16x128, kBf16x256, kFp16x64, kFp16x128, kFp16x256;

}  // namespace flashlatent::paged
