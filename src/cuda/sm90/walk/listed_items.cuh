// The segments of a CTA's part as loading warps see them if tokens are of two lists (listed_tokens.cuh): one
// after another, each with what a loader needs of its lists. Each warp walks by itself, by one lane, and
// keeps its place in shared memory. In local memory, with a copy for each thread, walks take 60 KB, and L1
// has only 28 KB left.
#pragma once

#include <new>

#include "cuda/sm90/walk/shares.cuh"
#include "plan/turns.h"

namespace flashlatent::sm90 {

/// A warp's place: a segment, or an end, and its lists.
struct ListedItem {
  Work work;
  ListedRange range;
};

/// What walks have in common.
class ListedItems {
 public:
  __device__ __forceinline__ const Work& get() const { return mine_.work; }
  /// Unless it is an end.
  __device__ __forceinline__ const ListedRange& range() const { return mine_.range; }

 protected:
  __device__ __forceinline__ ListedItems(ListedItem& mine, const DecodeArguments& args)
      : mine_(mine), args_(args) {}
  /// To where `find` is, which one lane calls.
  template <class Find>
  __device__ __forceinline__ void go_to(Find find) {
    __syncwarp();  // all lanes have read the previous one
    if (threadIdx.x % 32 == 0) {
      const Work work = find();
      if (!work.is_end()) mine_.range = listed_range(args_, work.segment, work.tile);
      mine_.work = work;
    }
    __syncwarp();
  }

  ListedItem& mine_;
  const DecodeArguments& args_;
};

/// Items by schedule::Partition::kTurns, or a single share of an item.
class ItemsInTurn : public ListedItems {
 public:
  using Memory = ListedItem;

  __device__ __forceinline__ ItemsInTurn(Memory& mine, const DecodeArguments& args)
      : ListedItems(mine, args) {}

  /// Begins at `first`. `tell` and `look_ahead` get the item and its lists before these are in shared memory,
  /// since a call waits for both.
  template <class Tell, class LookAhead>
  __device__ __forceinline__ void begin(const Work& first, Tell tell, LookAhead look_ahead) {
    if (!first.is_end()) {
      tell(first);
      const ListedRange range = listed_range(args_, first.segment, first.tile);
      look_ahead(range);
      if (threadIdx.x % 32 == 0) mine_.range = range;
    }
    if (threadIdx.x % 32 == 0) mine_.work = first;
    __syncwarp();
  }
  __device__ __forceinline__ void next() {
    go_to([&] {
      const schedule::Geometry& g = args_.geometry;
      const schedule::Segment& segment = mine_.work.segment;
      Work work = whole_item(args_, schedule::turn_after(g, {segment.round, segment.request, 0, 0}));
      if (!work.is_end()) {
        place_blocks(g, work, schedule::length_of(g, args_.cache.list_lengths, work.segment.request));
      }
      return work;
    });
  }
};

/// Segments as a plan has them.
class PlannedItems : public ListedItems {
  using Walk = Segments<1, /*kLooksAhead=*/false, /*kLists=*/true>;  // looking ahead would wait for its loads

 public:
  struct Memory : ListedItem {
    union {
      Walk walk;
    };
  };

  __device__ __forceinline__ PlannedItems(Memory& mine, const DecodeArguments& args)
      : ListedItems(mine, args), walk_(mine.walk) {}

  template <class Tell, class LookAhead>
  __device__ __forceinline__ void begin(const PartPlace<>& place, Tell tell, LookAhead look_ahead) {
    if (threadIdx.x % 32 == 0) new (&walk_) Walk(args_, place);
    next();
    if (get().is_end()) return;
    tell(get());
    look_ahead(range());
  }
  __device__ __forceinline__ void next() {
    go_to([&] {
      Work work;
      if (walk_.next(work.segment)) {
        work.tile = walk_.tile_of(work.segment);
      } else {
        work.segment.request = -1;
      }
      return work;
    });
  }

 private:
  Walk& walk_;
};

}  // namespace flashlatent::sm90
