// The compiled dense kernels as rows of data: what each takes, and how it is launched.
#pragma once

#include "cuda/common/compiled_kernel.h"
#include "cuda/common/tensor_map.h"
#include "flashlatent/dtype.h"

namespace flashlatent::cuda {

/// How a kernel gets its KV blocks.
enum class Loading {
  kBoxes,   ///< Boxes of pages by TMA.
  kTokens,  ///< Token by token: small or odd pages, indices.
  kFp8,     ///< Token by token from an fp8_656 cache, dequantised.
};

/// What a kernel is compiled for.
struct InstanceKey {
  Dtype dtype;
  int qk_dim;
  int v_dim;
  int tile_rows;
  Loading loading;
  int cluster = 1;  ///< Row tiles, and CTAs, that share KV blocks.
  int team = 1;     ///< CTAs that share the blocks of a segment.

  friend bool operator==(const InstanceKey&, const InstanceKey&) = default;
};

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
