// Which loader fills the blocks.
#pragma once

#include "cuda/fp8/few_rows_smem.cuh"
#include "cuda/fp8/loader.cuh"
#include "cuda/parts/atoms_loader.cuh"

namespace flashlatent::fp8::few_rows {

/// fp8_656's tokens, as an e4m3 loader has them.
template <class Shared>
struct Fp8_656Loader : fp8::Loader<Shared> {
  static constexpr int kArrivals = 4;
  using fp8::Loader<Shared>::Loader;
};

template <class Config>
using LoaderOf = std::conditional_t<Config::kE4m3, parts::atoms::Loader<SharedMemory<Config>>,
                                    Fp8_656Loader<SharedMemory<Config>>>;

/// `map`: of boxes, else null.
template <class Config>
__device__ __forceinline__ LoaderOf<Config> loader_of(SharedMemory<Config>& shared,
                                                      const parts::DecodeArguments& args,
                                                      const CUtensorMap* map, int thread) {
  if constexpr (Config::kE4m3) {
    return {args.cache, *map, shared, thread};
  } else {
    return {args.cache, shared, thread};
  }
}

/// One range, which the loader has looked ahead to.
template <class Shared>
__device__ __forceinline__ void load_range(Fp8_656Loader<Shared>& loader, const parts::BlockRange& range) {
  struct NoPipe {
  } pipe;
  loader.load(pipe, range, [] {});
}
template <class Loader>
__device__ __forceinline__ void load_range(Loader& loader, const parts::BlockRange& range) {
  loader.load(range, [] {});
}

}  // namespace flashlatent::fp8::few_rows
