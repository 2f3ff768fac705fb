// The plan, built on the device by one CTA: a parallel prefix sum of the requests' costs, then one thread a
// cut; where requests are packed, first one warp for each bound of a part. Header, cuts and merges are bit
// for bit those of plan/host_plan.cc; both call plan/schedule.h.
#include <cub/block/block_scan.cuh>

#include "cuda/common/launch.h"
#include "cuda/cuda_backend.h"
#include "plan/packing.h"
#include "plan/shares.h"

namespace flashlatent::cuda {

namespace {

using schedule::Cut;
using schedule::Geometry;
using schedule::Merge;
using schedule::PlanView;

constexpr int kThreads = 1024;
constexpr int kEach = 4;  // requests a thread and pass
// Costs of up to this many requests are searched in shared memory, of more in the plan's own memory.
constexpr int kSharedRequests = 4096;

using Scan = cub::BlockScan<std::int64_t, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;

/// Two counts in one scan, both below 2^31.
struct Pair {
  std::int32_t low, high;
};
__device__ std::int64_t pack(Pair pair) {
  return static_cast<std::int64_t>(pair.high) << 32 | pair.low;
}
__device__ Pair unpack(std::int64_t packed) {
  return {static_cast<std::int32_t>(packed), static_cast<std::int32_t>(packed >> 32)};
}

/// What packings, one a warp, share and leave behind.
struct Packings {
  std::int32_t best;                             // number of the first that fits, else kPackings
  std::int32_t ranks[schedule::kMostPacked];     // of requests by their cost
  std::int32_t costs[schedule::kMostPacked];     // by rank
  std::int32_t requests[schedule::kMostPacked];  // by rank
  std::int32_t order[schedule::kMostPacked];     // requests, in the best packing's order
  std::uint8_t taken[schedule::kPackings][schedule::kMostPacked];  // ranks, in each packing's order
  std::int16_t cut_items[schedule::kPackings][schedule::kMostPackedParts + 1];  // numbers in that order
  std::int32_t cut_blocks[schedule::kPackings][schedule::kMostPackedParts + 1];
};
static_assert(schedule::kMostPacked <= 256, "ranks are bytes");

/// Items for schedule::pack_parts(), by rank from the shortest on, kSlots times 32 of them. Each lane of a
/// warp has the costs of kSlots, and all lanes have the same bits for those that are left.
template <int kSlots>
class WarpItems {
 public:
  __device__ __forceinline__ WarpItems(const Packings& packings, int requests, std::uint8_t* order)
      : all_costs_(packings.costs), order_(order) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int rank = i * 32 + threadIdx.x % 32;
      costs_[i] = rank < requests ? packings.costs[rank] : 0;
      left_[i] = __ballot_sync(0xffffffff, rank < requests);
    }
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
    return last_of(bits);
  }
  __device__ __forceinline__ void take(schedule::Unpacked item) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      left_[i] &= ~(item.place / 32 == i ? 1U << item.place % 32 : 0U);
    }
    order_[taken_++] = static_cast<std::uint8_t>(item.place);  // by all lanes
    if (item.place == longest_.place || item.place == shortest_.place) find_ends();
  }

 private:
  __device__ __forceinline__ schedule::Unpacked at(std::int32_t rank) const {
    return {rank, rank < 0 ? -1 : all_costs_[rank]};
  }
  __device__ __forceinline__ schedule::Unpacked last_of(const std::uint32_t (&bits)[kSlots]) const {
    std::uint32_t word = 0;
    int base = 0;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (bits[i] != 0) word = bits[i], base = i * 32;
    }
    return at(word == 0 ? -1 : base + 31 - __clz(static_cast<int>(word)));
  }
  __device__ __forceinline__ void find_ends() {
    longest_ = last_of(left_);
    std::uint32_t word = 0;
    int base = 0;
#pragma unroll
    for (int i = kSlots - 1; i >= 0; --i) {
      if (left_[i] != 0) word = left_[i], base = i * 32;
    }
    shortest_ = at(word == 0 ? -1 : base + __ffs(static_cast<int>(word)) - 1);
  }

  const std::int32_t* all_costs_;
  std::uint8_t* order_;
  std::int32_t costs_[kSlots];
  std::uint32_t left_[kSlots];
  schedule::Unpacked longest_, shortest_;
  int taken_ = 0;
};

struct Builder {
  const Geometry& g;
  std::uint64_t fingerprint;
  const std::int32_t* lengths;
  PlanView plan;
  std::int64_t* cost_prefix;
  Scan::TempStorage& scan_memory;
  Packings& packings;

  __device__ std::int32_t blocks_at(std::int32_t request) const {
    return schedule::blocks_of(g, schedule::length_of(g, lengths, request));
  }

  /// cost_prefix, requests + 1 long.
  __device__ void scan_costs() const {
    std::int64_t carry = 0;
    for (std::int32_t start = 0; start < g.requests; start += kThreads * kEach) {
      const std::int32_t first = start + threadIdx.x * kEach;
      std::int64_t values[kEach];
      for (int i = 0; i < kEach; ++i) {
        values[i] = first + i < g.requests ? schedule::item_cost(g, blocks_at(first + i)) : 0;
      }
      std::int64_t sum;
      Scan(scan_memory).ExclusiveSum(values, values, sum);
      for (int i = 0; i < kEach; ++i) {
        if (first + i < g.requests) cost_prefix[first + i] = carry + values[i];
      }
      carry += sum;
      __syncthreads();  // scan_memory is free again
    }
    if (threadIdx.x == 0) cost_prefix[g.requests] = carry;
    __syncthreads();
  }

  /// With fixed_split: slot_prefix, and the merges of the first round. Returns how many those are.
  __device__ std::int32_t scan_fixed_slots() const {
    Pair carry{0, 0};  // slots, merges
    for (std::int32_t start = 0; start < g.requests; start += kThreads * kEach) {
      const std::int32_t first = start + threadIdx.x * kEach;
      std::int32_t splits[kEach];
      std::int64_t before[kEach];
      for (int i = 0; i < kEach; ++i) {
        splits[i] = first + i < g.requests ? schedule::fixed_splits_of(g, blocks_at(first + i)) : 1;
        before[i] = splits[i] > 1 ? pack({splits[i], 1}) : 0;
      }
      std::int64_t sum;
      Scan(scan_memory).ExclusiveSum(before, before, sum);
      for (int i = 0; i < kEach; ++i) {
        if (first + i >= g.requests) break;
        const Pair here = unpack(before[i]);
        const std::int32_t slot = carry.low + here.low;
        plan.slot_prefix[first + i] = slot;
        if (splits[i] > 1) plan.merges[carry.high + here.high] = {0, first + i, slot, slot + splits[i]};
      }
      carry.low += unpack(sum).low;
      carry.high += unpack(sum).high;
      __syncthreads();
    }
    if (threadIdx.x == 0) plan.slot_prefix[g.requests] = carry.low;
    __syncthreads();
    return carry.high;
  }

  __device__ void cut_fixed() const {
    const std::int32_t round_merges = scan_fixed_slots();
    const std::int32_t round_slots = plan.slot_prefix[g.requests];
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) {
      Cut cut = schedule::cut_at(g, cost_prefix, k, lengths);
      cut.slot = schedule::fixed_slot(g, plan.slot_prefix, cut);
      plan.cuts[k] = cut;
    }
    const std::int32_t merges = round_merges * g.rounds;
    for (std::int32_t i = round_merges + threadIdx.x; i < merges; i += kThreads) {
      const std::int32_t round = i / round_merges;
      const Merge& like = plan.merges[i % round_merges];
      const std::int32_t base = round * round_slots;
      plan.merges[i] = {round, like.request, base + like.slot_begin, base + like.slot_end};
    }
    finish(merges, round_slots * g.rounds);
  }

  __device__ void cut_into_shares() const {
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) {
      plan.cuts[k] = schedule::shared_cut(g, cost_prefix, k);
    }
    finish(0, g.parts);
  }

  __device__ void cut_evenly() const {
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) plan.cuts[k] = schedule::even_cut(g, k);
    for (std::int32_t r = threadIdx.x; r < g.requests; r += kThreads) {
      plan.merges[r] = schedule::even_merge(g, r);
    }
    finish(g.requests, g.requests * schedule::even_shares(g));
  }

  /// By a warp, a request a lane.
  __device__ void cut_by_length() const {
    if (threadIdx.x >= 32) return;
    constexpr unsigned kAll = 0xffffffff;
    const int r = threadIdx.x;
    const bool is_request = r < g.requests;
    const int blocks = is_request ? schedule::blocks_of(g, schedule::length_of(g, lengths, r)) : 0;
    const int most = schedule::least_longest_share(g, __reduce_add_sync(kAll, blocks), [&](std::int32_t m) {
      return __reduce_add_sync(kAll, is_request ? schedule::shares_within(blocks, m) : 0);
    });
    const int shares = is_request ? schedule::shares_within(blocks, most) : 0;
    int end = shares;  // of this request's and all before
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAll, end, step);
      if (r >= step) end += before;
    }
    const int begin = end - shares;
    for (int i = 0; i < shares; ++i) plan.cuts[begin + i] = {shares, r, i, begin + i};
    if (is_request) plan.merges[r] = {0, r, begin, end};
    const int used = __shfl_sync(kAll, end, 31);
    for (int k = used + r; k <= g.parts; k += 32) plan.cuts[k] = schedule::no_part(g, used);
    finish(g.requests, used);
  }

  /// Ranks of items by their cost, the shortest first and of equal ones the last: how many come before each.
  __device__ void rank_costs() const {
    auto cost = [&](int r) { return static_cast<std::int32_t>(cost_prefix[r + 1] - cost_prefix[r]); };
    constexpr int kSharers = kThreads / schedule::kMostPacked;  // threads that count for one request
    const int request = threadIdx.x % schedule::kMostPacked, share = threadIdx.x / schedule::kMostPacked;
    if (threadIdx.x < schedule::kMostPacked) packings.ranks[threadIdx.x] = 0;
    __syncthreads();
    if (request < g.requests) {
      const std::int32_t own = cost(request);
      int count = 0;
      for (int r = share; r < g.requests; r += kSharers) {
        const std::int32_t other = cost(r);
        count += other < own || (other == own && r > request);
      }
      atomicAdd(&packings.ranks[request], count);
    }
    __syncthreads();
    if (threadIdx.x < g.requests) {
      const int rank = packings.ranks[threadIdx.x];
      packings.costs[rank] = cost(threadIdx.x);
      packings.requests[rank] = threadIdx.x;
    }
    __syncthreads();
  }

  template <int kSlots>
  __device__ void pack_by_warp(int packing) const {
    WarpItems<kSlots> items(packings, g.requests, packings.taken[packing]);
    auto cut = [&](std::int32_t k, std::int32_t item, std::int32_t block) {
      packings.cut_items[packing][k] = static_cast<std::int16_t>(item);  // by all lanes
      packings.cut_blocks[packing][k] = block;
    };
    const std::int32_t bound = schedule::packing_bound(g, cost_prefix[g.requests], packing);
    const bool fits = schedule::pack_parts(g, bound, items, cut);
    if (fits && threadIdx.x % 32 == 0) atomicMin(&packings.best, packing);
  }

  /// Partial results of these cuts, by all threads. `cut_at(k)` is cut k.
  template <class CutAt>
  __device__ int slots_of(CutAt&& cut_at) const {
    int slots = 0;
    for (std::int32_t start = 1; start <= g.parts; start += kThreads) {
      const std::int32_t k = start + threadIdx.x;
      const Cut cut = k <= g.parts ? cut_at(k) : Cut{0, 0, 0, 0};
      const Cut before = k <= g.parts ? cut_at(k - 1) : Cut{0, 0, 0, 0};
      slots += __syncthreads_count(schedule::opens_segment(cut, before));
      slots += __syncthreads_count(schedule::opens_merge(cut, before));
    }
    return slots;
  }

  /// Other cuts, without slots, and successors, if packing leaves fewer partial results than the cuts there
  /// are.
  __device__ void pack_items() const {
    if (!schedule::may_pack(g, cost_prefix[g.requests])) return;
    if (threadIdx.x == 0) packings.best = schedule::kPackings;
    rank_costs();
    const int warp = threadIdx.x / 32;
    if (warp < schedule::kPackings) {
      g.requests <= 128 ? pack_by_warp<4>(warp) : pack_by_warp<schedule::kMostPacked / 32>(warp);
    }
    __syncthreads();
    const int best = packings.best;
    if (best == schedule::kPackings) return;
    for (int i = threadIdx.x; i < g.requests; i += kThreads) {
      packings.order[i] = packings.requests[packings.taken[best][i]];
    }
    __syncthreads();
    auto packed_cut = [&](std::int32_t k) {
      return schedule::packed_cut(g, packings.cut_items[best][k], packings.cut_blocks[best][k],
                                  packings.order);
    };
    if (slots_of(packed_cut) >= slots_of([&](std::int32_t k) { return plan.cuts[k]; })) return;
    for (int i = threadIdx.x; i < g.requests; i += kThreads) {
      plan.successors[packings.order[i]] = schedule::packed_successor(g, i, packings.order);
    }
    for (int k = threadIdx.x; k <= g.parts; k += kThreads) plan.cuts[k] = packed_cut(k);
  }

  __device__ void cut_balanced() const {
    bool too_long = false;
    for (std::int32_t k = threadIdx.x; k < g.parts; k += kThreads) {
      too_long = too_long || !schedule::whole_part_fits(g, cost_prefix, k);
    }
    const bool whole = !__syncthreads_or(too_long);
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) {
      plan.cuts[k] = schedule::balanced_cut(g, cost_prefix, k, lengths, whole);
    }
    for (std::int32_t r = threadIdx.x; r < g.requests && plan.successors != nullptr; r += kThreads) {
      plan.successors[r] = r + 1 < g.requests ? r + 1 : ~0;
    }
    __syncthreads();
    if (!whole) pack_items();
    __syncthreads();   // below, each cut looks at its neighbours
    Pair carry{0, 0};  // segments, merges
    for (std::int32_t start = 0; start <= g.parts; start += kThreads) {
      const std::int32_t k = start + threadIdx.x;
      const bool real = k <= g.parts;
      const Cut cut = real ? plan.cuts[k] : Cut{0, 0, 0, 0};
      const Cut before = real && k > 0 ? plan.cuts[k - 1] : Cut{0, 0, 0, 0};
      const Cut after = real && k < g.parts ? plan.cuts[k + 1] : Cut{g.rounds, 0, 0, 0};
      const bool opens = schedule::opens_merge(cut, before);
      std::int64_t counts = pack({schedule::opens_segment(cut, before), opens});
      std::int64_t sum;
      Scan(scan_memory).InclusiveSum(counts, counts, sum);
      const std::int32_t segments = carry.low + unpack(counts).low;
      const std::int32_t merges = carry.high + unpack(counts).high;
      if (real) {
        const std::int32_t slot = schedule::balanced_slot(cut, segments, merges);
        plan.cuts[k].slot = slot;
        if (opens) {
          plan.merges[merges - 1].round = cut.round;
          plan.merges[merges - 1].request = cut.request;
          plan.merges[merges - 1].slot_begin = slot - 1;
        }
        if (schedule::closes_merge(cut, after)) plan.merges[merges - 1].slot_end = slot + 1;
      }
      carry.low += unpack(sum).low;
      carry.high += unpack(sum).high;
      __syncthreads();
    }
    finish(carry.high, carry.low + carry.high);
  }

  __device__ void finish(std::int32_t merges, std::int32_t slots) const {
    if (threadIdx.x != 0) return;
    schedule::Header header = {};
    header.fingerprint = fingerprint;
    header.total_cost = cost_prefix[g.requests] * g.rounds;
    header.merges = merges;
    header.slots = slots;
    *plan.header = header;
  }
};

__global__ void __launch_bounds__(kThreads)
    plan_kernel(const __grid_constant__ Geometry geometry, const __grid_constant__ Geometry used,
                const std::int32_t* lengths, void* memory) {
  __shared__ std::int64_t shared_prefix[kSharedRequests + 1];
  __shared__ Scan::TempStorage scan_memory;
  __shared__ Packings packings;
  const PlanView plan = schedule::plan_view(geometry, memory);
  std::int64_t* cost_prefix = geometry.requests <= kSharedRequests ? shared_prefix : plan.cost_prefix;
  const Builder builder{used,    schedule::fingerprint(geometry), lengths, plan, cost_prefix, scan_memory,
                        packings};
  builder.scan_costs();
  if (geometry.fixed_split > 0) {
    builder.cut_fixed();
  } else if (geometry.whole == schedule::kShared) {
    builder.cut_into_shares();
  } else if (geometry.whole == schedule::kEven) {
    builder.cut_evenly();
  } else if (geometry.whole == schedule::kByLength) {
    builder.cut_by_length();
  } else {
    builder.cut_balanced();
  }
  __syncthreads();
  const Cut end = plan.cuts[used.parts];
  for (std::int32_t k = used.parts + 1 + threadIdx.x; k <= geometry.parts; k += kThreads) plan.cuts[k] = end;
}

}  // namespace

Status build_plan(const Geometry& geometry, const ConstTensorView& cache_seqlens, Memory plan,
                  const Executor& executor) {
  return build_plan(geometry, geometry.parts, cache_seqlens, plan, executor);
}

Status build_plan(const Geometry& geometry, std::int32_t used_parts, const ConstTensorView& cache_seqlens,
                  Memory plan, const Executor& executor) {
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  LaunchShape shape;
  shape.threads = kThreads;
  return launch(plan_kernel, shape, executor, geometry, schedule::with_parts(geometry, used_parts),
                static_cast<const std::int32_t*>(cache_seqlens.data), plan.data);
}

}  // namespace flashlatent::cuda
