// The roles where tokens are of two lists: each loading warp walks its CTA's segments by itself
// (parts/listed_items.cuh), and the first one tells the computing warps.
#pragma once

#include "cuda/fp8/block_loader.cuh"
#include "cuda/fp8/few_rows_warpgroup.cuh"
#include "cuda/parts/listed_items.cuh"

namespace flashlatent::fp8::few_rows {

/// All segments of a walk that begins at `first`.
template <class Items, class Loader, class First, class Tell>
__device__ __forceinline__ void load_items(Items items, Loader& loader, const First& first, Tell tell) {
  items.begin(first, tell, [&](const parts::ListedRange& range) { loader.look_ahead(range); });
  while (!items.get().is_end()) {
    const parts::ListedRange range = items.range();  // of this segment, when the next one is there
    loader.load(range, [&] {
      items.next();
      if (!items.get().is_end()) loader.look_ahead(items.range());
    });
    if (!items.get().is_end()) tell(items.get());
  }
}

template <class Config>
__device__ __forceinline__ void load_lists(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                           int thread) {
  parts::WorkPosition position(shared.segments);
  auto tell = [&](const parts::Work& work) {
    if (thread == 0) position.put(work);
  };
  LoaderOf<SharedMemory<Config>> loader(args.cache, shared, thread);
  auto& walk = shared.walks.of_warp[thread / 32];
  if constexpr (Config::kAlone) {
    const bool shares = schedule::combines_shares(args.geometry.partition);
    if (!shares) {
      const parts::Work known = parts::whole_part(args);
      if (!known.is_end()) loader.guess(args, known.tile);
    }
    parts::Part<false, true, true> part(args);
    const parts::Work& first = part.find();
    if (!shares) {
      load_items(parts::ItemsInTurn(walk, args), loader, first, tell);
    } else if (!first.is_end()) {
      tell(first);
      const parts::ListedRange range = parts::listed_range(args, first.segment, first.tile);
      loader.look_ahead(range);
      loader.load(range, [] {});
    }
  } else {
    load_items(parts::PlannedItems(walk, args), loader, parts::PartPlace<>(args), tell);
  }
  parts::Work end;
  end.segment.request = -1;
  tell(end);
}

/// The CTA's first item as far as shapes tell it, or an end. No queries are ragged.
__device__ __forceinline__ parts::Work part_by_shapes(const parts::DecodeArguments& args) {
  switch (args.geometry.partition) {
    case schedule::Partition::kEvenShares:
      return parts::even_part(args);
    case schedule::Partition::kWhole:
    case schedule::Partition::kTurns:
      return parts::whole_part(args);
    default:
      break;
  }
  parts::Work unknown;
  unknown.segment.request = -1;
  return unknown;
}

/// Q of an item that shapes tell is asked for before the loader tells of it.
template <class Config>
__device__ __forceinline__ void compute_lists(SharedMemory<Config>& shared,
                                              const parts::DecodeArguments& args,
                                              Warpgroup<Config>& warpgroup) {
  parts::WorkPosition position(shared.segments);
  bool known = false;
  if constexpr (Config::kAlone) {
    const parts::Work first = part_by_shapes(args);
    known = !first.is_end();
    if (known) warpgroup.prepare(first.tile);
  }
  for (; known || !position.get().is_end(); position.next()) {
    if (!known) warpgroup.prepare(position.get().tile);
    warpgroup.begin(known || position.get().blocks() > 0);
    known = false;
    warpgroup.attend(position.get());
    warpgroup.finish();
  }
}

}  // namespace flashlatent::fp8::few_rows
