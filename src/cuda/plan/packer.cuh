// Packing of a plan's items (plan/packing.h) by one CTA: a warp a stretch and bound.
#pragma once

#include <cstdint>

#include "plan/packing.h"

namespace flashlatent::cuda {

/// What the warps that pack share and leave behind. Items are known by rank, 0 being the one that costs most.
struct Packings {
  std::int32_t costs[schedule::kMostPacked];       // by request
  std::int32_t ranks[schedule::kMostPacked];       // by request
  std::int32_t rank_costs[schedule::kMostPacked];  // by rank
  std::int32_t line_costs[schedule::kMostPacked];  // by place on the dealt line
  std::uint8_t requests[schedule::kMostPacked];    // by rank
  std::int32_t best[schedule::kMostStretches];     // number of the first bound that fits, else kPackings
  std::int32_t item_costs[schedule::kMostStretches][schedule::kMostPacked];  // of a stretch's items
  std::uint8_t items[schedule::kMostStretches][schedule::kMostPacked];       // their ranks
  std::uint8_t taken[schedule::kPackings][schedule::kMostPacked];  // ranks in the order of takes, by stretch
  std::int16_t cut_places[schedule::kPackings][schedule::kMostPackedParts + 1];
  std::int32_t cut_blocks[schedule::kPackings][schedule::kMostPackedParts + 1];
  std::uint8_t order[schedule::kMostPacked];  // requests, as the best bounds of all stretches take them
};
static_assert(schedule::kMostPacked <= 256, "ranks and requests are bytes");

/// A stretch's items for schedule::pack_parts(), those that cost most first, up to kSlots times 32 of them.
/// Each lane of a warp has the costs of kSlots, and all lanes have the same bits for those that are left.
template <int kSlots>
class WarpItems {
 public:
  /// `costs` and `ranks`: of the stretch's items, of which the last one waits if `last_waits`. `order` is
  /// told the ranks that are taken.
  __device__ __forceinline__ WarpItems(const std::int32_t* costs, const std::uint8_t* ranks, int items,
                                       bool last_waits, std::uint8_t* order)
      : all_costs_(costs), ranks_(ranks), order_(order), waiting_(last_waits ? items - 1 : -1) {
    const int ready = items - (last_waits && items > 1);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int item = i * 32 + threadIdx.x % 32;
      costs_[i] = item < items ? costs[item] : 0;
      left_[i] = __ballot_sync(0xffffffff, item < ready);
    }
    if (ready == items) waiting_ = -1;
    find_ends();
  }

  __device__ __forceinline__ schedule::Unpacked longest() const {
    return longest_;
  }
  __device__ __forceinline__ schedule::Unpacked shortest() const {
    return shortest_;
  }
  __device__ __forceinline__ schedule::Unpacked longest_within(std::int32_t cost) const {
    std::uint32_t bits[kSlots];
#pragma unroll
    for (int i = 0; i < kSlots; ++i) bits[i] = left_[i] & __ballot_sync(0xffffffff, costs_[i] <= cost);
    return first_of(bits);
  }
  __device__ __forceinline__ void take(schedule::Unpacked item) {
    std::uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      left_[i] &= ~(kSlots == 1 || item.place / 32 == i ? 1U << item.place % 32 : 0U);
      any |= left_[i];
    }
    order_[taken_++] = ranks_[item.place];  // by all lanes
    if (any == 0 && waiting_ >= 0) {
#pragma unroll
      for (int i = 0; i < kSlots; ++i) left_[i] = waiting_ / 32 == i ? 1U << waiting_ % 32 : 0U;
      waiting_ = -1;
    }
    if (any == 0 || item.place == longest_.place || item.place == shortest_.place) find_ends();
  }

 private:
  __device__ __forceinline__ schedule::Unpacked at(std::int32_t place) const {
    return {place, place < 0 ? -1 : all_costs_[place]};
  }
  __device__ __forceinline__ schedule::Unpacked first_of(const std::uint32_t (&bits)[kSlots]) const {
    std::uint32_t word = 0;
    int base = 0;
#pragma unroll
    for (int i = kSlots - 1; i >= 0; --i) {
      if (bits[i] != 0) word = bits[i], base = i * 32;
    }
    return at(word == 0 ? -1 : base + __ffs(static_cast<int>(word)) - 1);
  }
  __device__ __forceinline__ void find_ends() {
    longest_ = first_of(left_);
    std::uint32_t word = 0;
    int base = 0;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (left_[i] != 0) word = left_[i], base = i * 32;
    }
    shortest_ = at(word == 0 ? -1 : base + 31 - __clz(static_cast<int>(word)));
  }

  const std::int32_t* all_costs_;
  const std::uint8_t* ranks_;
  std::uint8_t* order_;
  std::int32_t costs_[kSlots];
  std::uint32_t left_[kSlots];
  std::int32_t waiting_;  // the item that is left until no other is; -1: none, or it is left now
  schedule::Unpacked longest_, shortest_;
  int taken_ = 0;
};

/// Packs items by all threads of a CTA, some multiple of 256 that has a warp for each stretch and bound.
class Packer {
 public:
  __device__ Packer(const schedule::Geometry& g, const std::int64_t* cost_prefix, Packings& shared)
      : g_(g), cost_prefix_(cost_prefix), shared_(shared) {}

  /// Does every stretch fit? Then cut() has the parts.
  __device__ bool pack() {
    if (threadIdx.x < schedule::kMostStretches) shared_.best[threadIdx.x] = schedule::kPackings;
    rank();
    const int stretches = schedule::stretches_of(g_);
    const int warp = threadIdx.x / 32, index = warp / schedule::kPackings;
    schedule::Stretch stretch = {};
    if (index < stretches) {
      stretch = find_stretch(index);
      if (warp % schedule::kPackings == 0) list_items(index, stretch);
    }
    __syncthreads();
    if (index < stretches) {
      stretch.items() <= 32 ? pack_stretch<1>(index, stretch)
                            : pack_stretch<schedule::kMostPacked / 32>(index, stretch);
    }
    __syncthreads();
    for (int i = 0; i < stretches; ++i) {
      if (shared_.best[i] == schedule::kPackings) return false;
    }
    if (index < stretches && warp % schedule::kPackings == 0) {
      const std::uint8_t* taken = shared_.taken[shared_.best[index]] + stretch.first_item();
      for (int i = threadIdx.x % 32; i < stretch.items(); i += 32) {
        shared_.order[stretch.first_item() + i] = shared_.requests[taken[i]];
      }
    }
    __syncthreads();
    return true;
  }

  /// Cut k, without its slot.
  __device__ schedule::Cut cut(std::int32_t k) const {
    if (k == g_.parts) return {g_.rounds, 0, 0, 0};
    const int best = shared_.best[k / (g_.parts / schedule::stretches_of(g_))];
    const int place = shared_.cut_places[best][k];
    if (place == g_.requests) return {g_.rounds, 0, 0, 0};
    return {0, shared_.order[place], shared_.cut_blocks[best][k], 0};
  }
  /// Request number `place` in the order of the packed line.
  __device__ std::int32_t request(std::int32_t place) const { return shared_.order[place]; }
  /// The request after that one.
  __device__ std::int32_t successor(std::int32_t place) const {
    return place + 1 < g_.requests ? shared_.order[place + 1] : ~static_cast<std::int32_t>(shared_.order[0]);
  }

 private:
  /// Ranks: how many cost more, or as much and come before. Then places on the dealt line.
  __device__ void rank() {
    const int request = threadIdx.x % schedule::kMostPacked;
    const int share = threadIdx.x / schedule::kMostPacked;
    const int sharers = blockDim.x / schedule::kMostPacked;  // threads that count for one request
    if (threadIdx.x < schedule::kMostPacked) {
      shared_.ranks[request] = 0;
      if (request < g_.requests) {
        shared_.costs[request] = static_cast<std::int32_t>(cost_prefix_[request + 1] - cost_prefix_[request]);
      }
    }
    __syncthreads();
    if (request < g_.requests) {
      const std::int32_t own = shared_.costs[request];
      int count = 0;
      for (int r = share; r < g_.requests; r += sharers) {
        const std::int32_t other = shared_.costs[r];
        count += other > own || (other == own && r < request);
      }
      atomicAdd(&shared_.ranks[request], count);
    }
    __syncthreads();
    if (threadIdx.x < g_.requests) {
      const int rank = shared_.ranks[request];
      const int place = schedule::dealt_place(g_.requests, schedule::stretches_of(g_), rank);
      shared_.rank_costs[rank] = shared_.costs[request];
      shared_.line_costs[place] = shared_.costs[request];
      shared_.requests[rank] = static_cast<std::uint8_t>(request);
    }
    __syncthreads();
  }

  /// By a warp: where the stretch begins, by the sum of costs on the dealt line.
  __device__ schedule::PackedPoint stretch_begin(int index) const {
    if (index == 0) return {0, 0};
    if (index == schedule::stretches_of(g_)) return {g_.requests, 0};
    constexpr unsigned kAll = 0xffffffff;
    constexpr int kEach = schedule::kMostPacked / 32;
    const int lane = threadIdx.x % 32;
    const std::int64_t total = cost_prefix_[g_.requests];
    const auto offset =
        static_cast<std::int32_t>(schedule::part_offset(total, g_.parts, schedule::stretch_part(g_, index)));
    std::int32_t costs[kEach], sum = 0;
    for (int i = 0; i < kEach; ++i) {
      costs[i] = lane * kEach + i < g_.requests ? shared_.line_costs[lane * kEach + i] : 0;
      sum += costs[i];
    }
    std::int32_t end = sum;  // of these and all before
    for (int step = 1; step < 32; step *= 2) {
      const std::int32_t before = __shfl_up_sync(kAll, end, step);
      if (lane >= step) end += before;
    }
    // The items that end at or before the offset.
    std::int32_t items = 0, cost = 0;
    std::int32_t item_end = end - sum;
    for (int i = 0; i < kEach; ++i) {
      item_end += costs[i];
      const bool ends = lane * kEach + i < g_.requests && item_end <= offset;
      items += ends;
      cost += ends ? costs[i] : 0;
    }
    items = __reduce_add_sync(kAll, items);
    cost = __reduce_add_sync(kAll, cost);
    if (items == g_.requests) return {g_.requests, 0};
    return schedule::stretch_begin(g_, offset, items, cost, shared_.line_costs[items]);
  }

  __device__ schedule::Stretch find_stretch(int index) const {
    const schedule::PackedPoint begin = stretch_begin(index), end = stretch_begin(index + 1);
    return schedule::stretch_of(g_, index, begin, end, begin.block > 0 ? shared_.line_costs[begin.place] : 0);
  }

  /// By a warp: the stretch's items by rank, and after those the one that it has a piece of.
  __device__ void list_items(int index, const schedule::Stretch& stretch) const {
    constexpr unsigned kAll = 0xffffffff;
    const int lane = threadIdx.x % 32, stretches = schedule::stretches_of(g_);
    const int first = stretch.first_item(), end = first + stretch.items();
    int listed = 0;
    for (int start = 0; start < g_.requests; start += 32) {
      const int rank = start + lane;
      const int place = rank < g_.requests ? schedule::dealt_place(g_.requests, stretches, rank) : -1;
      const bool is_piece = stretch.piece > 0 && place == stretch.end.place;
      const bool here = place >= first && place < end && !is_piece;
      const unsigned mask = __ballot_sync(kAll, here);
      if (here) list(index, listed + __popc(mask & ((1U << lane) - 1)), rank, shared_.rank_costs[rank]);
      if (is_piece) list(index, stretch.items() - 1, rank, stretch.piece);
      listed += __popc(mask);
    }
  }
  __device__ void list(int index, int item, int rank, std::int32_t cost) const {
    shared_.items[index][item] = static_cast<std::uint8_t>(rank);
    shared_.item_costs[index][item] = cost;
  }

  template <int kSlots>
  __device__ void pack_stretch(int index, const schedule::Stretch& stretch) const {
    const int packing = threadIdx.x / 32 % schedule::kPackings;
    WarpItems<kSlots> items(shared_.item_costs[index], shared_.items[index], stretch.items(),
                            stretch.piece > 0, shared_.taken[packing] + stretch.first_item());
    auto cut = [&](std::int32_t k, std::int32_t item, std::int32_t block) {
      const schedule::PackedPoint point = schedule::packed_point(stretch, item, block);
      shared_.cut_places[packing][k] = static_cast<std::int16_t>(point.place);  // by all lanes
      shared_.cut_blocks[packing][k] = point.block;
    };
    const std::int32_t bound = schedule::packing_bound(g_, cost_prefix_[g_.requests], packing);
    const bool fits = schedule::pack_parts(g_, bound, stretch, items, cut);
    if (fits && threadIdx.x % 32 == 0) atomicMin(&shared_.best[index], packing);
  }

  const schedule::Geometry& g_;
  const std::int64_t* cost_prefix_;
  Packings& shared_;
};

}  // namespace flashlatent::cuda
