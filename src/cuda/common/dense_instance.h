// The compiled dense kernels as rows of data: what each is compiled for, and how it is launched.
#pragma once

#include "cuda/common/compiled_kernel.h"
#include "cuda/common/instance_key.h"
#include "cuda/common/tensor_map.h"

namespace flashlatent::cuda {

/// How the boxes of a kernel lie in shared memory.
struct BoxMaps {
  /// Where it is not kv_tensor_map(), what heads_in_chunks() is not true of goes token by token.
  Status (*kv)(const char* name, const ConstTensorView& cache, int box_tokens,
               CUtensorMap& map) = kv_tensor_map;
  Status (*query)(const ConstTensorView& q, int box_rows, CUtensorMap& map) = query_rows_map;
  int most_tokens = 64;  ///< Of a page that come by one box.
  int query_rows = 0;    ///< By one box; 0: a tile's.
};

/// A compiled kernel. Its parameters are DenseLaunch's args, kv and query_rows, or the first of these.
struct DenseInstance {
  InstanceKey key;
  CompiledKernel kernel;
  BoxMaps boxes = {};
  bool merges = false;  ///< Can its CTAs do the combine step (parts/merge_step.cuh)?
};

}  // namespace flashlatent::cuda
