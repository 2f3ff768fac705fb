// Packs a plan's items (plan/packing.h) by one CTA: one warp for each stretch and bound.
//
// A step takes one item: a chain of votes, shuffles and comparisons. Code that runs once costs as much as it
// has instructions, so the host computes what all threads need.
#pragma once

#include <cstdint>

#include "plan/packing.h"

namespace flashlatent::cuda {

/// The packing warps' shared data and results. Items are named by rank; rank 0 costs most.
struct Packings {
  alignas(16) std::int32_t costs[schedule::kMostPacked];  // by request; -1: there is none
  std::int32_t rank_costs[schedule::kMostPacked];         // by rank
  std::int32_t line_costs[schedule::kMostPacked];         // by place on the dealt line
  std::uint8_t requests[schedule::kMostPacked];           // by rank
  std::uint8_t places[schedule::kMostPacked];             // on the dealt line, by rank
  std::int32_t best[schedule::kMostStretches];  // number of the first bound that fits; kPackings: none does
  std::int32_t item_costs[schedule::kMostStretches][schedule::kMostPacked];  // of a stretch's items
  std::uint8_t items[schedule::kMostStretches][schedule::kMostPacked];       // ranks of a stretch's items
  std::uint8_t taken[schedule::kPackings][schedule::kMostPacked];  // ranks in the order of takes, by stretch
  std::int16_t cut_places[schedule::kPackings][schedule::kMostPackedParts + 1];
  std::int32_t cut_blocks[schedule::kPackings][schedule::kMostPackedParts + 1];
  // requests, in the order of takes by the best bounds of all stretches
  std::uint8_t order[schedule::kMostPacked];
};
static_assert(schedule::kMostPacked <= 256, "ranks, places and requests are bytes");

/// A stretch's items for schedule::pack_parts(), the most expensive first, up to 32 kSlots of them. Each lane
/// of a warp has the costs of kSlots items; all lanes have the same bits for the items that are left.
template <int kSlots>
class WarpItems {
 public:
  /// `costs` and `ranks`: of the stretch's items; the last one waits if `last_waits`. `order` gets the ranks
  /// of taken items.
  __device__ __forceinline__ WarpItems(const std::int32_t* costs, const std::uint8_t* ranks, int items,
                                       bool last_waits, std::uint8_t* order)
      : all_costs_(costs), ranks_(ranks), order_(order) {
    const int ready = items - last_waits;
    if (last_waits) waiting_ = {ready, costs[ready]};
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int item = i * 32 + threadIdx.x % 32;
      costs_[i] = item < ready ? costs[item] : 0;
      left_[i] = __ballot_sync(kAll, item < ready);
    }
    find_ends();
  }

  __device__ __forceinline__ schedule::Unpacked longest() const {
    return longest_;
  }
  __device__ __forceinline__ schedule::Unpacked shortest() const {
    return shortest_;
  }
  /// The longest item is not within `cost`.
  __device__ __forceinline__ schedule::Unpacked longest_within(std::int32_t cost) const {
    std::uint32_t bits[kSlots];
#pragma unroll
    for (int i = 0; i < kSlots; ++i) bits[i] = left_[i] & __ballot_sync(kAll, costs_[i] <= cost);
    return first_of(bits);
  }
  __device__ __forceinline__ void take(schedule::Unpacked item) {
    if (item.place == waiting_.place) waiting_ = kNone;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) left_[i] &= ~(item.place / 32 == i ? 1U << item.place % 32 : 0U);
    *order_++ = ranks_[item.place];  // by all lanes
    find_ends();
  }

 private:
  static constexpr unsigned kAll = 0xffffffff;
  static constexpr schedule::Unpacked kNone{-1, -1};

  /// `base`: the slot that it is in, times 32.
  __device__ __forceinline__ schedule::Unpacked at(std::uint32_t word, int base, int bit) const {
    if constexpr (kSlots == 1) {
      const std::int32_t cost = __shfl_sync(kAll, costs_[0], bit);
      return {word == 0 ? -1 : bit, word == 0 ? -1 : cost};
    }
    return {word == 0 ? -1 : base + bit, word == 0 ? -1 : all_costs_[base + bit]};
  }
  __device__ __forceinline__ schedule::Unpacked first_of(const std::uint32_t (&bits)[kSlots]) const {
    std::uint32_t word = bits[0];
    int base = 0;
#pragma unroll
    for (int i = 1; i < kSlots; ++i) {
      if (word == 0) word = bits[i], base = i * 32;
    }
    return at(word, base, __ffs(static_cast<int>(word)) - 1);
  }
  __device__ __forceinline__ void find_ends() {
    longest_ = first_of(left_);
    std::uint32_t word = left_[kSlots - 1];
    int base = 32 * (kSlots - 1);
#pragma unroll
    for (int i = kSlots - 2; i >= 0; --i) {
      if (word == 0) word = left_[i], base = i * 32;
    }
    shortest_ = at(word, base, 31 - __clz(static_cast<int>(word)));
    if (word == 0) longest_ = shortest_ = waiting_;
  }

  const std::int32_t* all_costs_;
  const std::uint8_t* ranks_;
  std::uint8_t* order_;
  std::int32_t costs_[kSlots];
  std::uint32_t left_[kSlots];
  schedule::Unpacked waiting_ = kNone;  // may be taken when no other item is left
  schedule::Unpacked longest_, shortest_;
};

/// Packs items by a CTA of kThreads threads: a thread for each request, a warp for each stretch and bound.
class Packer {
 public:
  static constexpr int kThreads = schedule::kMostPacked;
  static_assert(kThreads >= 32 * schedule::kMostStretches * schedule::kPackings);

  __device__ __forceinline__ Packer(const schedule::Geometry& g, const schedule::Stretches& stretches,
                                    const std::int64_t* cost_prefix, Packings& shared)
      : g_(g), stretches_(stretches), cost_prefix_(cost_prefix), shared_(shared) {}

  /// Returns whether every stretch fits; then cut() gives the parts.
  __device__ __forceinline__ bool pack() {
    if (threadIdx.x < schedule::kMostStretches) shared_.best[threadIdx.x] = schedule::kPackings;
    rank();
    const int warp = threadIdx.x / 32, index = warp % schedule::kMostStretches;
    const int packing = warp / schedule::kMostStretches;
    const bool packs = index < stretches_.count && packing < schedule::kPackings;
    schedule::Stretch stretch = {};
    if (packs) {
      stretch = find_stretch(index);
      if (packing == 0) list_items(index, stretch);
    }
    __syncthreads();
    if (packs) {
      const int ready = stretch.items() - (stretch.piece > 0);
      if (ready <= 32) {
        pack_stretch<1>(index, packing, stretch);
      } else if (ready <= 128) {
        pack_stretch<4>(index, packing, stretch);
      } else {
        pack_stretch<schedule::kMostPacked / 32>(index, packing, stretch);
      }
    }
    __syncthreads();
    bool fits = true;
    for (int i = 0; i < stretches_.count; ++i) fits = fits && shared_.best[i] < schedule::kPackings;
    if (!fits) return false;
    if (packs && packing == shared_.best[index]) {
      for (int i = threadIdx.x % 32; i < stretch.items(); i += 32) {
        const int place = stretch.first_item() + i;
        shared_.order[place] = shared_.requests[shared_.taken[packing][place]];
      }
    }
    __syncthreads();
    return true;
  }

  /// Cut k; its `partial` is 0.
  __device__ __forceinline__ schedule::Cut cut(std::int32_t k) const {
    if (k == g_.parts) return {g_.rounds, 0, 0, 0};
    int index = 0;
    for (int end = stretches_.parts; end <= k; end += stretches_.parts) ++index;
    const int best = shared_.best[index];
    const int place = shared_.cut_places[best][k];
    if (place == g_.requests) return {g_.rounds, 0, 0, 0};
    return {0, shared_.order[place], shared_.cut_blocks[best][k], 0};
  }
  /// The request in place `place` of the packed line.
  __device__ __forceinline__ std::int32_t request(std::int32_t place) const { return shared_.order[place]; }
  /// The request after it.
  __device__ __forceinline__ std::int32_t successor(std::int32_t place) const {
    return place + 1 < g_.requests ? shared_.order[place + 1] : ~static_cast<std::int32_t>(shared_.order[0]);
  }

 private:
  static constexpr unsigned kAll = 0xffffffff;

  /// Computes ranks (the number of requests that cost more, or as much and come before), then places on the
  /// dealt line.
  __device__ __forceinline__ void rank() {
    const int request = threadIdx.x;
    const bool is_request = request < g_.requests;
    std::int32_t own = -1;
    if (is_request) own = static_cast<std::int32_t>(cost_prefix_[request + 1] - cost_prefix_[request]);
    shared_.costs[request] = own;
    __syncthreads();
    if (is_request) {
      const auto* all = reinterpret_cast<const int4*>(shared_.costs);
      int rank = 0;
      auto count = [&](int other, int r) { rank += other > own - (r < request); };
#pragma unroll 2
      for (int r = 0; r < g_.requests; r += 4) {
        const int4 others = all[r / 4];
        count(others.x, r);
        count(others.y, r + 1);
        count(others.z, r + 2);
        count(others.w, r + 3);
      }
      const int place = schedule::dealt_place(g_.requests, stretches_.count, rank);
      shared_.rank_costs[rank] = own;
      shared_.line_costs[place] = own;
      shared_.requests[rank] = static_cast<std::uint8_t>(request);
      shared_.places[rank] = static_cast<std::uint8_t>(place);
    }
    __syncthreads();
  }

  /// Called by a warp: where the stretch begins and ends, from sums of costs on the dealt line.
  __device__ __forceinline__ schedule::Stretch find_stretch(int index) const {
    constexpr int kEach = schedule::kMostPacked / 32;
    const int lane = threadIdx.x % 32;
    std::int32_t costs[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      costs[i] = lane * kEach + i < g_.requests ? shared_.line_costs[lane * kEach + i] : 0;
      sum += costs[i];
    }
    std::int32_t before = sum;  // of these items and all before; later of those before
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::int32_t other = __shfl_up_sync(kAll, before, step);
      if (lane >= step) before += other;
    }
    before -= sum;
    schedule::PackedPoint points[2];
#pragma unroll 1
    for (int side = 0; side < 2; ++side) {
      const auto offset = static_cast<std::int32_t>(
          schedule::part_offset(cost_prefix_[g_.requests], stretches_.count, index + side));
      // Items that end at or before the offset.
      std::int32_t items = 0, cost = 0, end = before;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        end += costs[i];
        const bool ends = lane * kEach + i < g_.requests && end <= offset;
        items += ends;
        cost += ends ? costs[i] : 0;
      }
      items = __reduce_add_sync(kAll, items);
      cost = __reduce_add_sync(kAll, cost);
      points[side] = {index + side == 0 ? 0 : g_.requests, 0};
      if (index + side > 0 && index + side < stretches_.count && items < g_.requests) {
        points[side] =
            schedule::stretch_begin(g_, stretches_, offset, items, cost, shared_.line_costs[items]);
      }
    }
    return schedule::stretch_of(g_, stretches_, index, points[0], points[1],
                                points[0].block > 0 ? shared_.line_costs[points[0].place] : 0);
  }

  /// Called by a warp: lists the stretch's items by rank, then the item of which it has a piece.
  __device__ __forceinline__ void list_items(int index, const schedule::Stretch& stretch) const {
    const int lane = threadIdx.x % 32;
    const int first = stretch.first_item(), end = first + stretch.items();
    int listed = 0;
#pragma unroll 1
    for (int start = 0; start < g_.requests; start += 32) {
      const int rank = start + lane;
      const int place = rank < g_.requests ? shared_.places[rank] : -1;
      const bool is_piece = stretch.piece > 0 && place == stretch.end.place;
      const bool here = place >= first && place < end && !is_piece;
      const unsigned mask = __ballot_sync(kAll, here);
      if (here || is_piece) {
        const int item = is_piece ? stretch.items() - 1 : listed + __popc(mask & ((1U << lane) - 1));
        shared_.items[index][item] = static_cast<std::uint8_t>(rank);
        shared_.item_costs[index][item] = is_piece ? stretch.piece : shared_.rank_costs[rank];
      }
      listed += __popc(mask);
    }
  }

  template <int kSlots>
  __device__ __forceinline__ void pack_stretch(int index, int packing,
                                               const schedule::Stretch& stretch) const {
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
  const schedule::Stretches& stretches_;
  const std::int64_t* cost_prefix_;
  Packings& shared_;
};

}  // namespace flashlatent::cuda
