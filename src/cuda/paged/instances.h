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

/// The most query rows a tile. With 16 of d 256 a warp has too few registers: two tiles of 8, which meet in
/// the cache, take 5 to 58 % less time.
constexpr int most_columns(int dim) {
  return dim <= 128 ? 16 : 8;
}

using DimInstances = std::array<Instance, 8>;   // 8 and 16 columns; plain and e4m3; rows and packed values
using WideInstances = std::array<Instance, 4>;  // 8 columns

// One file each, so that they compile side by side.
extern const DimInstances kBf16x64, kBf16x128, kFp16x64, kFp16x128;
extern const WideInstances kBf16x256, kFp16x256;

}  // namespace flashlatent::paged
