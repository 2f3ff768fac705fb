// The compiled shapes of the paged kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/common/compiled_kernel.h"

namespace flashlatent::paged {

enum class CachedType { kBF16, kF16, kE4m3 };

/// What a kernel is compiled for; Config says what the fields mean.
struct InstanceKey {
  CachedType cached;
  int dim;
  int columns;
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

/// 8 and 16 columns of d 64 and 128, 8 of 256; rows and packed values.
using Instances = std::array<Instance, 10>;

// One file each, so that they compile side by side.
extern const Instances kBf16, kFp16, kE4m3;

}  // namespace flashlatent::paged
