// A compiled dense kernel as a row of data: its key, and how it is launched.
#pragma once

#include "cuda/host/compiled_kernel.h"
#include "cuda/host/instance_key.h"
#include "cuda/host/tensor_map.h"

namespace flashlatent::cuda {

/// How the kernel's TMA boxes lie in shared memory.
struct BoxMaps {
  /// The map of the cache, if not kv_tensor_map(). Caches without heads_in_chunks() are then loaded token by
  /// token.
  Status (*kv)(const char* name, const ConstTensorView& cache, int box_tokens,
               CUtensorMap& map) = kv_tensor_map;
  /// The map of each of the query's two tensors.
  Status (*query)(const char* name, const ConstTensorView& q, int box_rows, bool in_line,
                  CUtensorMap& map) = query_rows_map;
  int most_tokens = 64;     ///< The most tokens of a page in one box.
  int query_rows = 0;       ///< Query rows of one box; 0: those of a tile.
  bool query_lines = true;  ///< Does the kernel load boxes of rows that are not all in one line?
};

/// A compiled kernel. Its parameters are DenseLaunch's args, kv and query, or the first of these.
struct DenseInstance {
  InstanceKey key;
  CompiledKernel kernel;
  BoxMaps boxes = {};
  bool merges = false;  ///< Can its CTAs run the combine step (merge/merge_step.cuh)?
};

}  // namespace flashlatent::cuda
