// TMA descriptors of caches of bytes, for wgmma with 64-byte swizzle.
#pragma once

#include "cuda/common/tensor_map.h"

namespace flashlatent::cuda {

/// A cache of one head as boxes of `box_tokens` tokens with all their columns, in atoms of 8 tokens and 64
/// columns, 64-byte swizzled: those of 8 tokens follow one another, then come the next 8 tokens. Dimensions
/// are a column, a token, 64 columns, 8 tokens, a page. `box_tokens` and the page size are multiples of 8.
Status kv_atoms_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map);

}  // namespace flashlatent::cuda
