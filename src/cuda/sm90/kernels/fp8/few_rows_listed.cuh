// The roles if tokens are of two lists: each loading warp walks its CTA's segments by itself
// (walk/listed_items.cuh), and the first loading warp announces them to the computing warps. With
// Config::kAlone both roles wait for the launch before by themselves, behind what shapes tell.
#pragma once

#include "cuda/sm90/kernels/fp8/block_loader.cuh"
#include "cuda/sm90/walk/listed_items.cuh"

namespace flashlatent::fp8::few_rows {

/// Whole items by kTurns, or a single share of an item.
class AloneItems : public sm90::ItemsInTurn {
 public:
  using ItemsInTurn::ItemsInTurn;

  /// Begins at an item that is known before anything is read; it is announced later.
  __device__ __forceinline__ void put(const sm90::Work& first, const sm90::ListedRange& range) {
    if (threadIdx.x % 32 == 0) {
      mine_.range = range;
      mine_.work = first;
    }
    __syncwarp();
  }
  /// Rows are loaded before the item is announced: a call waits for them.
  template <class Tell, class LookAhead>
  __device__ __forceinline__ void begin(const sm90::Work& first, Tell tell, LookAhead look_ahead) {
    if (!first.is_end()) {
      const sm90::ListedRange range = sm90::listed_range(args_, first.segment, first.tile);
      look_ahead(range);
      tell(first);
      __syncwarp();  // all lanes have read what put() placed
      if (threadIdx.x % 32 == 0) mine_.range = range;
    }
    if (threadIdx.x % 32 == 0) mine_.work = first;
    __syncwarp();
  }
  __device__ __forceinline__ void next() {
    if (!schedule::combines_shares(args_.geometry.partition)) return ItemsInTurn::next();
    go_to([] {
      sm90::Work end;
      end.segment.request = -1;
      return end;
    });
  }
};

/// Entries of a call's first item are loaded before its lengths are known.
template <class Shared>
class GuessingLoader : public LoaderOf<Shared> {
  using Loader = LoaderOf<Shared>;

 public:
  using Loader::Loader;

  /// Loads entries as look_ahead() would for this range; the next range may equal it except in the number of
  /// tokens.
  __device__ __forceinline__ void guess(const sm90::ListedRange& range) {
    Loader::look_ahead(range);
    guessed_begin_ = range.begin;
    guessed_blocks_ = range.lists.blocks;
  }
  /// The guess was right.
  __device__ __forceinline__ void take_guess() { guessed_begin_ = kNoGuess; }
  __device__ __forceinline__ void look_ahead(const sm90::ListedRange& range) {
    if (guessed_begin_ == range.begin && guessed_blocks_ == range.lists.blocks && range.lists.first == 0) {
      if (!counts(range, range.begin)) this->entry_ = -1;
      if (!counts(range, range.begin + 2)) this->entry_ahead_ = -1;
    } else {
      Loader::look_ahead(range);
    }
    guessed_begin_ = kNoGuess;
  }

 private:
  static constexpr int kNoGuess = -1;

  __device__ __forceinline__ bool counts(const sm90::ListedRange& range, int block) const {
    const sm90::ListPlace at = this->place(range, block);
    return block + this->half() < range.end &&
           at.token < (at.second ? range.lists.tokens[1] : range.lists.tokens[0]);
  }

  int guessed_begin_ = kNoGuess, guessed_blocks_ = 0;
};

/// Is an item, or the end, announced when the item before it is being loaded? Else when that has been loaded.
template <class Config>
inline constexpr bool kTellsAhead = requires {
  requires Config::kTellsAhead;
};

/// All segments of a walk that has begun.
template <bool kAhead, class Items, class Loader, class Tell, class AtNext>
__device__ __forceinline__ void load_items(Items& items, Loader& loader, Tell tell, AtNext at_next) {
  if (kAhead && items.get().is_end()) tell(items.get());
  while (!items.get().is_end()) {
    const sm90::ListedRange range = items.range();  // of this segment, when the next one is there
    loader.load(range, [&] {
      items.next();
      if (!items.get().is_end()) loader.look_ahead(items.range());
      if constexpr (kAhead) {
        tell(items.get());
        at_next(items.get());
      }
    });
    if (!kAhead && !items.get().is_end()) tell(items.get());
  }
}

/// The CTA's first item as far as shapes tell it, or an end. No queries are ragged.
__device__ __forceinline__ sm90::Work part_by_shapes(const sm90::DecodeArguments& args) {
  switch (args.geometry.partition) {
    case schedule::Partition::kEvenShares:
      return sm90::even_part(args);
    case schedule::Partition::kWhole:
    case schedule::Partition::kTurns:
      return sm90::whole_part(args);
    default:
      break;
  }
  sm90::Work unknown;
  unknown.segment.request = -1;
  return unknown;
}

/// listed_range() for lists as long as shapes allow.
__device__ __forceinline__ sm90::ListedRange full_range(const sm90::DecodeArguments& args,
                                                        const sm90::Work& work) {
  const schedule::Geometry& g = args.geometry;
  sm90::ListedRange range;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const sm90::ListedCache& cache = args.cache.listed[i];
    range.lists.entries[i] = cache.entries + work.tile.request * cache.entries_stride +
                             work.tile.first_token * cache.entries_token_stride;
    range.lists.tokens[i] = g.list[i].reach;
  }
  range.lists.first = 0;
  range.lists.blocks = schedule::list_blocks(g, g.list[0].reach);
  range.kv_head = work.tile.kv_head;
  range.begin = work.segment.block_begin;
  range.end = work.segment.block_end;
  return range;
}

/// Whether an item's lists are as long as shapes allow, as with long contexts: then all that follows from
/// lengths has been computed before the launch before is done. Some 500 instructions that run once take 2 us.
class FullLists {
 public:
  __device__ __forceinline__ FullLists(const sm90::DecodeArguments& args, int item)
      : geometry_(args.geometry) {
    const int sharers = geometry_.length_sharers;
    const int request = sharers == 1 ? item : item / sharers, token = item - request * sharers;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const schedule::ListLengths& given = args.cache.list_lengths.list[i];
      may_be_ =
          may_be_ && given.spans == nullptr && geometry_.list[i].window == 0 && !geometry_.list[i].causal;
      if (given.lengths != nullptr) {
        length_[i] = given.lengths + request * given.request_stride + token * given.token_stride;
      }
    }
  }
  /// Once the launch before is done.
  __device__ __forceinline__ bool are_full() const {
    return may_be_ && is_full(0) && is_full(1);
  }

 private:
  __device__ __forceinline__ bool is_full(int i) const {
    return length_[i] == nullptr || *length_[i] >= geometry_.list[i].reach;
  }

  const schedule::Geometry& geometry_;
  const std::int32_t* length_[2] = {nullptr, nullptr};
  bool may_be_ = true;
};

/// at_next(work): called when the next item is known, if it is announced ahead.
template <class Shared, class AtNext>
__device__ __forceinline__ void load_lists(Shared& shared, const sm90::DecodeArguments& args, int thread,
                                           AtNext at_next) {
  using Config = typename Shared::Config;
  constexpr bool kAhead = kTellsAhead<Config>;
  sm90::WorkPosition position(shared.segments);
  auto tell = [&](const sm90::Work& work) {
    if (thread == 0) position.put(work);
  };
  GuessingLoader<Shared> loader(args.cache, shared, thread);
  auto& walk = shared.walks.of_warp[thread / 32];
  const auto look_ahead = [&](const sm90::ListedRange& range) { loader.look_ahead(range); };
  if constexpr (Config::kAlone) {
    const schedule::Geometry& g = args.geometry;
    AloneItems items(walk, args);
    sm90::Part<false, true, true> part(args);
    sm90::Work guess = part_by_shapes(args);
    const FullLists lists(args, guess.segment.request);
    if (!guess.is_end()) {
      sm90::place_blocks(g, guess, g.max_tokens);
      items.put(guess, full_range(args, guess));
    }
    sm90::wait_for_launch_before();
    if (!guess.is_end()) loader.guess(items.range());
    if (!guess.is_end() && lists.are_full()) {
      loader.take_guess();
      tell(items.get());
    } else {
      items.begin(part.find(), tell, look_ahead);
    }
    load_items<kAhead>(items, loader, tell, at_next);
  } else {
    sm90::PlannedItems items(walk, args);
    items.begin(sm90::PartPlace<>(args), tell, look_ahead);
    load_items<kAhead>(items, loader, tell, at_next);
  }
  if constexpr (!kAhead) {
    sm90::Work end;
    end.segment.request = -1;
    tell(end);
  }
}

template <class Shared>
__device__ __forceinline__ void load_lists(Shared& shared, const sm90::DecodeArguments& args, int thread) {
  load_lists(shared, args, thread, [](const sm90::Work&) {});
}

/// Q of an item that shapes tell is loaded before the loader announces the item.
template <class Shared, class Computing>
__device__ __forceinline__ void compute_lists(Shared& shared, const sm90::DecodeArguments& args,
                                              Computing& warpgroup) {
  sm90::WorkPosition position(shared.segments);
  bool known = false;
  if constexpr (Shared::Config::kAlone) {
    const sm90::Work first = part_by_shapes(args);
    known = !first.is_end();
    if (known) warpgroup.prepare(first.tile);
    sm90::wait_for_launch_before();
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
