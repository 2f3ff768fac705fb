// TMA descriptors of byte caches, for wgmma with 64-byte swizzle.
#pragma once

#include "cuda/host/tensor_map.h"

namespace flashlatent::cuda {

/// A cache of one head as boxes of `box_tokens` tokens with all their columns. In shared memory a box is a
/// sequence of atoms (8 tokens x 64 columns, 64-byte swizzled): all atoms of 8 tokens, then those of the next
/// 8 tokens. The map's dimensions: column, token, 64 columns, 8 tokens, page. `box_tokens` and the page size
/// are multiples of 8.
Status kv_atoms_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map);

}  // namespace flashlatent::cuda
