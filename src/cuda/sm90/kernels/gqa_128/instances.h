// The compiled instances of gqa_128's kernels, as rows of data.
#pragma once

#include <cuda.h>

#include "cuda/host/compiled_kernel.h"
#include "cuda/sm90/kernels/gqa_128/arguments.h"
#include "cuda/sm90/kernels/gqa_128/keys.h"

namespace flashlatent::gqa_128 {

/// The parameters of a launch.
struct Launch {
  Arguments args;
  CUtensorMap keys, values;
  CUtensorMap query;  // set if args.query_boxes
  int ctas;
};

struct Instance {
  InstanceKey key;
  cuda::CompiledKernel kernel;  // its parameters are Launch's first four
};

using DtypeInstances = std::array<Instance, kBf16Keys.size()>;
using SegmentInstances = std::array<Instance, kBf16SegmentKeys.size()>;
using E4m3Instances = std::array<Instance, kBf16E4m3Keys.size()>;

// A file for each dtype, and one for e4m3, so that they compile side by side.
extern const DtypeInstances kBf16, kFp16;
extern const SegmentInstances kBf16Segments, kFp16Segments;
extern const E4m3Instances kBf16E4m3, kFp16E4m3;

}  // namespace flashlatent::gqa_128
