// Which loader fills the blocks.
#pragma once

#include "cuda/sm90/kernels/fp8/listed_row_loader.cuh"
#include "cuda/sm90/kernels/fp8/loader.cuh"
#include "cuda/sm90/kernels/fp8/token_kind.h"
#include "cuda/sm90/load/atoms_loader.cuh"

namespace flashlatent::fp8 {

template <class Shared, Arrangement>
struct LoaderInto;
template <class Shared>
struct LoaderInto<Shared, Arrangement::kOneByOne> {
  using Type = Loader<Shared>;
};
template <class Shared>
struct LoaderInto<Shared, Arrangement::kPairs> {
  using Type = ListedRowLoader<Shared, Shared::Config::kListsInRegisters, Copies584<Shared>>;
};
template <class Shared>
struct LoaderInto<Shared, Arrangement::kAtoms> {
  using Type = sm90::atoms::Loader<Shared>;
};

/// Records have a loader of their own (record_copies.cuh).
template <class Shared, Tokens kTokens = Shared::Config::kTokens>
struct LoaderOfTokens {
  using Type = typename LoaderInto<Shared, kTraits<kTokens>.arrangement>::Type;
};
template <class Shared>
using LoaderOf = typename LoaderOfTokens<Shared>::Type;

/// All blocks of the listed segments. `map`: the boxes' map, else null.
template <class Shared>
__device__ __forceinline__ void load_blocks(Shared& shared, const sm90::DecodeArguments& args,
                                            const CUtensorMap* map, int thread) {
  if constexpr (Shared::Config::kE4m3) {
    sm90::atoms::load_segments(args, shared.segments, LoaderOf<Shared>(args.cache, *map, shared, thread));
  } else {
    load_listed(args, shared.segments, LoaderOf<Shared>(args.cache, shared, thread));
  }
}

/// Loads one range; calls `began()` when the range's first entries have been loaded.
template <class Shared, class Began>
__device__ __forceinline__ void load_range(Shared& shared, const sm90::DecodeArguments& args,
                                           const CUtensorMap* map, const sm90::BlockRange& range, int thread,
                                           Began began) {
  if constexpr (Shared::Config::kE4m3) {
    LoaderOf<Shared> loader(args.cache, *map, shared, thread);
    loader.look_ahead(range);
    began();
    loader.load(range, [] {});
  } else {
    struct NoPipe {
    } pipe;
    LoaderOf<Shared> loader(args.cache, shared, thread);
    loader.look_ahead(range);
    began();
    loader.load(pipe, range, [] {});
  }
}

}  // namespace flashlatent::fp8
