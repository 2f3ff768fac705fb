// Blocks of tokens to shared memory as they are in the cache: by boxes of pages, or token by token.
#pragma once

#include "cuda/sm90/kernels/mla_64_e4m3/smem_layout.cuh"
#include "cuda/sm90/load/atoms_loader.cuh"

namespace flashlatent::mla_64_e4m3 {

template <class Shared>
using Loader = sm90::atoms::Loader<Shared>;

}  // namespace flashlatent::mla_64_e4m3
