// Makes a plan on the device with one CTA: a parallel prefix sum of the requests' costs, then one thread for
// each cut. If requests are packed, a warp for each stretch and bound comes first (packer.cuh). Header, cuts
// and merges have the same bits as those of plan/host_plan.cc; both call the partitions' files in plan/.
#include <cub/block/block_scan.cuh>

#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/plan/packer.cuh"
#include "plan/even_shares.h"
#include "plan/line_shares.h"
#include "plan/plan_memory.h"
#include "plan/ragged_lengths.h"
#include "plan/shares_by_length.h"
#include "plan/team_shares.h"
#include "plan/whole.h"
#include "plan/whole_parts.h"

namespace flashlatent::cuda {

namespace {

using schedule::Cut;
using schedule::Geometry;
using schedule::Merge;
using schedule::Partition;
using schedule::PlanView;

constexpr int kEach = 4;  // requests of a thread in one pass
// Threads of the kernel that packs, of a large kernel that does not, and of a small one, whose threads have
// one cut and up to kEach requests each. What all warps execute takes time by their number.
constexpr int kPackingThreads = Packer::kThreads;
constexpr int kManyThreads = 1024;
constexpr int kFewThreads = 256;
// Up to this many requests, costs are searched in shared memory; with more, in the plan's own memory.
constexpr int kSharedRequests = 4096;
// Up to this many parts, cuts stay in shared memory until the places of their partial results are known.
constexpr int kSharedParts = 511;

/// Requests are few where they are packed or cut into single shares.
union SharedMemory {
  std::int64_t cost_prefix[kSharedRequests + 1];
  struct {
    std::int64_t cost_prefix[schedule::kMostPacked + 1];
    union {
      Packings packings;
      std::int32_t share_ends[schedule::kMostSingleShares];
    };
  } few;
};
static_assert(schedule::kMostSingleShares <= schedule::kMostPacked);

/// Two counts in one scan; their sums stay below 2^31.
struct Pair {
  std::int32_t low, high;
};
__device__ std::int64_t pack(Pair pair) {
  return static_cast<std::int64_t>(pair.high) << 32 | pair.low;
}
__device__ Pair unpack(std::int64_t packed) {
  return {static_cast<std::int32_t>(packed), static_cast<std::int32_t>(packed >> 32)};
}

/// Not inline: code that runs once takes time by its number of instructions, and inline there would be three
/// copies.
__device__ __noinline__ schedule::LinePoint find_point(const Geometry& g, const std::int64_t* cost_prefix,
                                                       std::int32_t k) {
  return schedule::point_at(g, cost_prefix, k);
}

/// Lengths: a pointer to one list's lengths, UnionLengths, or RaggedLengths. kThreads: of the CTA. kPacks:
/// may requests be packed?
template <class Lengths, int kThreads, bool kPacks>
struct Builder {
  static constexpr int kWarps = kThreads / 32;
  using Scan = cub::BlockScan<std::int64_t, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;

  const Geometry& g;
  std::uint64_t fingerprint;
  Lengths lengths;
  PlanView plan;
  std::int64_t* cost_prefix;
  Cut* cuts;  // their `partial` is 0
  typename Scan::TempStorage& scan_memory;
  const schedule::Stretches& stretches;
  Packings& packings;
  std::int32_t* share_ends;  // of single shares; kMostSingleShares entries

  __device__ std::int32_t blocks_at(std::int32_t request) const {
    return schedule::blocks_of(g, schedule::length_of(g, lengths, request));
  }

  /// Computes cost_prefix, requests + 1 entries.
  __device__ void scan_costs() const {
    std::int64_t carry = 0;
    for (std::int32_t start = 0; start < g.requests; start += kThreads * kEach) {
      const std::int32_t first = start + threadIdx.x * kEach;
      std::int64_t values[kEach];
      for (int i = 0; i < kEach; ++i) {
        values[i] = first + i < g.requests ? schedule::cost_of_item(g, lengths, first + i) : 0;
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

  /// Computes partial_prefix, and the merges of the first round. Returns the number of these.
  __device__ std::int32_t scan_fixed_partials() const {
    Pair carry{0, 0};  // partial results, merges
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
        const std::int32_t begin = carry.low + here.low;
        plan.partial_prefix[first + i] = begin;
        if (splits[i] > 1) plan.merges[carry.high + here.high] = {0, first + i, begin, begin + splits[i]};
      }
      carry.low += unpack(sum).low;
      carry.high += unpack(sum).high;
      __syncthreads();
    }
    if (threadIdx.x == 0) plan.partial_prefix[g.requests] = carry.low;
    __syncthreads();
    return carry.high;
  }

  __device__ void cut_fixed() const {
    const std::int32_t round_merges = scan_fixed_partials();
    const std::int32_t round_partials = plan.partial_prefix[g.requests];
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) {
      Cut cut = schedule::fixed_cut(g, find_point(g, cost_prefix, k), lengths);
      cut.partial = schedule::fixed_partial(g, plan.partial_prefix, cut);
      plan.cuts[k] = cut;
    }
    const std::int32_t merges = round_merges * g.rounds;
    for (std::int32_t i = round_merges + threadIdx.x; i < merges; i += kThreads) {
      const std::int32_t round = i / round_merges;
      const Merge& like = plan.merges[i % round_merges];
      const std::int32_t base = round * round_partials;
      plan.merges[i] = {round, like.request, base + like.partial_begin, base + like.partial_end};
    }
    finish(merges, round_partials * g.rounds);
  }

  __device__ void cut_by_item() const {
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) plan.cuts[k] = schedule::whole_cut(g, k);
    finish(0, 0);
  }

  __device__ void cut_for_teams() const {
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) {
      plan.cuts[k] = schedule::stored(schedule::team_cut(g, cost_prefix, k));
    }
    finish(0, g.parts);
  }

  __device__ void cut_evenly() const {
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) {
      plan.cuts[k] = schedule::stored(schedule::even_cut(g, k));
    }
    for (std::int32_t r = threadIdx.x; r < g.requests; r += kThreads) {
      plan.merges[r] = schedule::even_merge(g, r);
    }
    finish(g.requests, g.requests * schedule::even_shares(g));
  }

  /// Called by a warp; each lane has a request.
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
    int end = shares;  // shares of this request and all before
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAll, end, step);
      if (r >= step) end += before;
    }
    const int begin = end - shares;
    for (int i = 0; i < shares; ++i) {
      plan.cuts[begin + i] = schedule::stored(schedule::ShareCut{shares, r, i, begin + i});
    }
    if (is_request) plan.merges[r] = {0, r, begin, end};
    const int used = __shfl_sync(kAll, end, 31);
    for (int k = used + r; k <= g.parts; k += 32)
      plan.cuts[k] = schedule::stored(schedule::no_share(g, used));
    finish(g.requests, used);
  }

  /// The number of partial results of these cuts. Called by all threads; `cut_at(k)` gives cut k.
  template <class CutAt>
  __device__ int partials_of(CutAt&& cut_at) const {
    int partials = 0;
    for (std::int32_t start = 1; start <= g.parts; start += kThreads) {
      const std::int32_t k = start + threadIdx.x;
      const Cut cut = k <= g.parts ? cut_at(k) : Cut{0, 0, 0, 0};
      const Cut before = k <= g.parts ? cut_at(k - 1) : Cut{0, 0, 0, 0};
      partials += __syncthreads_count(schedule::opens_segment(cut, before));
      partials += __syncthreads_count(schedule::opens_merge(cut, before));
    }
    return partials;
  }

  /// Replaces the cuts and successors by packed ones, if packing leaves fewer partial results than the
  /// present cuts. Places of partial results are not set.
  __device__ void pack_items() const {
    if (!schedule::may_pack(g, cost_prefix[g.requests])) return;
    Packer packer(g, stretches, cost_prefix, packings);
    if (!packer.pack()) return;
    if (partials_of([&](std::int32_t k) { return packer.cut(k); }) >=
        partials_of([&](std::int32_t k) { return cuts[k]; })) {
      return;
    }
    for (int i = threadIdx.x; i < g.requests; i += kThreads) {
      plan.successors[packer.request(i)] = packer.successor(i);
    }
    for (int k = threadIdx.x; k <= g.parts; k += kThreads) cuts[k] = packer.cut(k);
  }

  /// Cuts the line into single shares if takes_single_shares() says so; returns whether it did. Places of
  /// partial results are not set.
  __device__ bool cut_single_shares() const {
    if (!schedule::may_share_line(g)) return false;
    const int r = threadIdx.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr unsigned kAll = 0xffffffff;
    constexpr int kOfALane = schedule::kMostSingleShares / 32;
    std::int32_t blocks[kOfALane];
    std::int64_t all = 0;
#pragma unroll
    for (int i = 0; i < kOfALane; ++i) {
      blocks[i] = i * 32 + lane < g.requests ? blocks_at(i * 32 + lane) : 0;
      all += blocks[i];
    }
    for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(kAll, all, step);
    if (all == 0 || all > INT32_MAX) return false;
    // All warps find the least longest share: each tries another length, a 32nd of the remaining range apart.
    std::int32_t low = schedule::shares_within(static_cast<std::int32_t>(all), g.parts);
    std::int32_t high = schedule::shares_within(static_cast<std::int32_t>(all), g.parts - g.requests);
    while (low < high) {
      const std::int32_t step = (high - low + kWarps - 1) / kWarps;
      const std::int32_t most = low + step * warp;
      std::int32_t shares = 0;
#pragma unroll
      for (int i = 0; i < kOfALane; ++i)
        shares += i * 32 + lane < g.requests ? schedule::shares_within(blocks[i], most) : 0;
      shares = __reduce_add_sync(kAll, shares);
      // Lengths that are too short come first; these are counted.
      const int short_lengths = __syncthreads_count(lane == 0 && (most < high && shares > g.parts));
      high = short_lengths == kWarps ? high : min(high, low + step * short_lengths);
      low = short_lengths == 0 ? low : low + step * (short_lengths - 1) + 1;
    }
    const std::int32_t shares = r < g.requests ? schedule::shares_within(blocks_at(r), low) : 0;
    std::int64_t end = shares, used;
    Scan(scan_memory).InclusiveSum(end, end, used);
    if (!schedule::takes_single_shares(g, cost_prefix[g.requests], low, static_cast<std::int32_t>(used)))
      return false;
    if (r < g.requests) share_ends[r] = static_cast<std::int32_t>(end);
    __syncthreads();
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) {
      cuts[k] = schedule::single_share_cut(g, share_ends, lengths, k);
    }
    return true;
  }

  __device__ void cut_line() const {
    schedule::LinePoint first{};  // where the thread's first cut falls; most threads have one cut
    for (std::int32_t k = threadIdx.x; k <= g.parts; k += kThreads) {
      const schedule::LinePoint point = find_point(g, cost_prefix, k);
      if (k == static_cast<std::int32_t>(threadIdx.x)) first = point;
      cuts[k] = schedule::nearest_item_end(g, cost_prefix, point);
    }
    __syncthreads();
    bool too_long = false;
    for (std::int32_t k = threadIdx.x; k < g.parts; k += kThreads) {
      too_long = too_long || !schedule::whole_part_fits(g, cost_prefix, cuts[k], cuts[k + 1]);
    }
    const bool whole = !__syncthreads_or(too_long);
    const bool single = !whole && cut_single_shares();
    for (std::int32_t k = threadIdx.x; k <= g.parts && !whole && !single; k += kThreads) {
      const schedule::LinePoint point =
          k == static_cast<std::int32_t>(threadIdx.x) ? first : find_point(g, cost_prefix, k);
      cuts[k] = schedule::line_cut(g, point, lengths);
    }
    for (std::int32_t r = threadIdx.x; r < g.requests; r += kThreads) {
      plan.successors[r] = r + 1 < g.requests ? r + 1 : ~0;
    }
    __syncthreads();
    if constexpr (kPacks && schedule::kCostsSegments<Lengths>) {
      if (!whole && !single) pack_items();
    }
    __syncthreads();   // below, each cut looks at its neighbours
    Pair carry{0, 0};  // segments, merges
    for (std::int32_t start = 0; start <= g.parts; start += kThreads) {
      const std::int32_t k = start + threadIdx.x;
      const bool real = k <= g.parts;
      Cut cut = real ? cuts[k] : Cut{0, 0, 0, 0};
      const Cut before = real && k > 0 ? cuts[k - 1] : Cut{0, 0, 0, 0};
      const Cut after = real && k < g.parts ? cuts[k + 1] : Cut{g.rounds, 0, 0, 0};
      const bool opens = schedule::opens_merge(cut, before);
      std::int64_t counts = pack({schedule::opens_segment(cut, before), opens});
      std::int64_t sum;
      Scan(scan_memory).InclusiveSum(counts, counts, sum);
      const std::int32_t segments = carry.low + unpack(counts).low;
      const std::int32_t merges = carry.high + unpack(counts).high;
      if (real) {
        const std::int32_t partial = schedule::balanced_partial(cut, segments, merges);
        cut.partial = partial;
        plan.cuts[k] = cut;
        if (opens) {
          plan.merges[merges - 1].round = cut.round;
          plan.merges[merges - 1].request = cut.request;
          plan.merges[merges - 1].partial_begin = partial - 1;
        }
        if (schedule::closes_merge(cut, after)) plan.merges[merges - 1].partial_end = partial + 1;
      }
      carry.low += unpack(sum).low;
      carry.high += unpack(sum).high;
      __syncthreads();
    }
    finish(carry.high, carry.low + carry.high);
  }

  __device__ void finish(std::int32_t merges, std::int32_t partials) const {
    if (threadIdx.x != 0) return;
    schedule::Header header = {};
    header.fingerprint = fingerprint;
    header.total_cost = cost_prefix[g.requests] * g.rounds;
    header.merges = merges;
    header.partials = partials;
    *plan.header = header;
  }
};

template <class Lengths, int kThreads, bool kPacks>
__global__ void __launch_bounds__(kThreads)
    plan_kernel(const __grid_constant__ Geometry geometry, const __grid_constant__ Geometry used,
                const __grid_constant__ schedule::Stretches stretches, std::uint64_t fingerprint,
                const __grid_constant__ Lengths lengths, void* memory) {
  __shared__ SharedMemory shared;
  __shared__ Cut shared_cuts[kSharedParts + 1];
  using Maker = Builder<Lengths, kThreads, kPacks>;
  __shared__ typename Maker::Scan::TempStorage scan_memory;
  const PlanView plan = schedule::plan_view(geometry, memory);
  const Maker builder{used,
                      fingerprint,
                      lengths,
                      plan,
                      geometry.requests <= kSharedRequests ? shared.cost_prefix : plan.cost_prefix,
                      geometry.parts <= kSharedParts ? shared_cuts : plan.cuts,
                      scan_memory,
                      stretches,
                      shared.few.packings,
                      shared.few.share_ends};
  builder.scan_costs();
  switch (geometry.partition) {
    case Partition::kLine:
      builder.cut_line();
      break;
    case Partition::kWhole:
    case Partition::kTurns:
      builder.cut_by_item();
      break;
    case Partition::kTeamShares:
      builder.cut_for_teams();
      break;
    case Partition::kEvenShares:
      builder.cut_evenly();
      break;
    case Partition::kSharesByLength:
      builder.cut_by_length();
      break;
    case Partition::kFixedSplits:
      builder.cut_fixed();
      break;
  }
  if (used.parts == geometry.parts) return;
  __syncthreads();
  const Cut end = plan.cuts[used.parts];
  for (std::int32_t k = used.parts + 1 + threadIdx.x; k <= geometry.parts; k += kThreads) plan.cuts[k] = end;
}

template <class Lengths, int kThreads, bool kPacks>
Status launch_plan_by(const Geometry& geometry, const Geometry& used, const Lengths& lengths, Memory plan,
                      const Executor& executor) {
  LaunchShape shape;
  shape.threads = kThreads;
  return launch(plan_kernel<Lengths, kThreads, kPacks>, shape, executor, geometry, used,
                schedule::stretches_of(used), schedule::fingerprint(geometry), lengths, plan.data);
}

template <class Lengths>
Status launch_plan(const Geometry& geometry, const schedule::Building& building, const Lengths& lengths,
                   Memory plan, const Executor& executor) {
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  Geometry used = schedule::with_parts(geometry, building.parts_of(geometry));
  if constexpr (schedule::kCostsSegments<Lengths>) {
    if (building.packs && schedule::shapes_may_pack(used)) {
      return launch_plan_by<Lengths, kPackingThreads, true>(geometry, used, lengths, plan, executor);
    }
  } else {
    used.cost.per_block_alone = 0;
  }
  if (geometry.requests <= kEach * kFewThreads && geometry.parts < kFewThreads) {
    return launch_plan_by<Lengths, kFewThreads, false>(geometry, used, lengths, plan, executor);
  }
  return launch_plan_by<Lengths, kManyThreads, false>(geometry, used, lengths, plan, executor);
}

}  // namespace

Status build_plan(const Geometry& geometry, const ConstTensorView& cache_seqlens, Memory plan,
                  const Executor& executor, const schedule::Building& building) {
  return launch_plan(geometry, building, static_cast<const std::int32_t*>(cache_seqlens.data), plan,
                     executor);
}

Status build_plan(const Geometry& geometry, const schedule::UnionLengths& lengths, Memory plan,
                  const Executor& executor, const schedule::Building& building) {
  return launch_plan(geometry, building, lengths, plan, executor);
}

Status build_plan(const Geometry& geometry, const schedule::RaggedLengths& lengths, Memory plan,
                  const Executor& executor, const schedule::Building& building) {
  return launch_plan(geometry, building, lengths, plan, executor);
}

}  // namespace flashlatent::cuda
