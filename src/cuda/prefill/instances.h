// The compiled shapes of the prefill kernel, as rows of data.
#pragma once

#include <cuda.h>

#include <array>

#include "cuda/common/compiled_kernel.h"
#include "cuda/prefill/arguments.h"
#include "cuda/prefill/config.h"
#include "flashlatent/dtype.h"

namespace flashlatent::prefill {

/// What a kernel is compiled for; Config says what the fields mean.
struct InstanceKey {
  Dtype dtype;
  int dim;
  Kind kind;

  friend bool operator==(const InstanceKey&, const InstanceKey&) = default;
};

/// What a kernel is launched with.
struct Launch {
  Arguments args;
  CUtensorMap keys, values;
  CUtensorMap query;  // where args.query_boxes
  int ctas;
};

struct Instance {
  InstanceKey key;
  int tile_rows;
  int block_tokens;
  cuda::CompiledKernel kernel;  // of Launch's first four
};

using DtypeInstances = std::array<Instance, 9>;  // d up to 64, 128, 256, each of three kinds

// One file each, so that they compile side by side.
extern const DtypeInstances kBf16, kFp16;

}  // namespace flashlatent::prefill
