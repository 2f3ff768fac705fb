// The plan of plan/schedule.h on the device: one CTA, prefix sums instead of a loop over requests.
#include <cub/block/block_scan.cuh>

#include "cuda/common/launch.h"
#include "cuda/cuda_backend.h"
#include "plan/schedule.h"

namespace flashlatent::cuda {

namespace {

using schedule::Cut;
using schedule::Geometry;
using schedule::PlanView;

constexpr int kThreads = 1024;

using CostScan = cub::BlockScan<std::int64_t, kThreads>;
using CountScan = cub::BlockScan<std::int32_t, kThreads>;

union ScanStorage {
  CostScan::TempStorage cost;
  CountScan::TempStorage count;
};

/// prefix[0] = 0, prefix[i + 1] = prefix[i] + value(i); returns prefix[count] in every thread.
template <class Scan, class T, class Value>
__device__ T prefix_sums(typename Scan::TempStorage& storage, T* prefix, int count, Value&& value) {
  T carry = 0;
  if (threadIdx.x == 0) prefix[0] = 0;
  for (int begin = 0; begin < count; begin += kThreads) {
    const int i = begin + threadIdx.x;
    T inclusive, total;
    Scan(storage).InclusiveSum(i < count ? value(i) : T{0}, inclusive, total);
    if (i < count) prefix[i + 1] = carry + inclusive;
    carry += total;
    __syncthreads();  // the storage is used again
  }
  return carry;
}

/// Cuts where balance wants them; a merge for each item that is cut.
__device__ void cut_balanced(const Geometry& g, const std::int32_t* lengths, const PlanView& plan,
                             ScanStorage& storage) {
  std::int32_t segments_carry = 0, merges_carry = 0;
  for (int begin = 0; begin <= g.parts; begin += kThreads) {
    const int k = begin + threadIdx.x;
    const bool there = k <= g.parts;
    Cut cut{}, before{}, after{};
    if (there) {
      cut = schedule::cut_at(g, plan.cost_prefix, k, lengths);
      if (k > 0) before = schedule::cut_at(g, plan.cost_prefix, k - 1, lengths);
      if (k < g.parts) after = schedule::cut_at(g, plan.cost_prefix, k + 1, lengths);
    }
    std::int32_t segments, merges, all_segments, all_merges;
    CountScan(storage.count)
        .InclusiveSum(there && schedule::opens_segment(cut, before), segments, all_segments);
    __syncthreads();
    CountScan(storage.count).InclusiveSum(there && schedule::opens_merge(cut, before), merges, all_merges);
    __syncthreads();
    segments += segments_carry;
    merges += merges_carry;
    segments_carry += all_segments;
    merges_carry += all_merges;
    if (!there) continue;
    cut.slot = segments + merges - (cut.block > 0);
    plan.cuts[k] = cut;
    if (cut.block == 0) continue;
    schedule::Merge& merge = plan.merges[merges - 1];
    if (schedule::opens_merge(cut, before)) {
      merge.round = cut.round;
      merge.request = cut.request;
      merge.slot_begin = cut.slot - 1;
    }
    const bool last = !(schedule::same_item(cut, after) && after.block > 0) || k == g.parts;
    if (last) merge.slot_end = cut.slot + 1;
  }
  if (threadIdx.x == 0) {
    plan.header->merges = merges_carry;
    plan.header->slots = segments_carry + merges_carry;
  }
}

/// Splits of a fixed size; a merge for each request longer than one, in every round.
__device__ void cut_fixed(const Geometry& g, const std::int32_t* lengths, const PlanView& plan,
                          ScanStorage& storage) {
  auto splits = [&](int request) {
    const std::int32_t n = schedule::fixed_splits_of(g, schedule::blocks_of(g, lengths[request]));
    return n > 1 ? n : 0;
  };
  const std::int32_t round_slots =
      prefix_sums<CountScan>(storage.count, plan.slot_prefix, g.requests, [&](int i) { return splits(i); });
  __syncthreads();
  for (int k = threadIdx.x; k <= g.parts; k += kThreads) {
    Cut cut = schedule::cut_at(g, plan.cost_prefix, k, lengths);
    cut.slot = cut.round * round_slots + plan.slot_prefix[cut.request] + cut.block / g.fixed_split;
    plan.cuts[k] = cut;
  }
  std::int32_t carry = 0;
  for (int begin = 0; begin < g.requests; begin += kThreads) {
    const int i = begin + threadIdx.x;
    const bool split = i < g.requests && splits(i) > 0;
    std::int32_t before, total;
    CountScan(storage.count).ExclusiveSum(split ? 1 : 0, before, total);
    __syncthreads();
    if (split) plan.merges[carry + before] = {0, i, plan.slot_prefix[i], plan.slot_prefix[i + 1]};
    carry += total;
  }
  __syncthreads();
  // The other rounds repeat the first, further on.
  for (int i = carry + threadIdx.x; i < carry * g.rounds; i += kThreads) {
    schedule::Merge merge = plan.merges[i % carry];
    merge.round = i / carry;
    merge.slot_begin += merge.round * round_slots;
    merge.slot_end += merge.round * round_slots;
    plan.merges[i] = merge;
  }
  if (threadIdx.x == 0) {
    plan.header->merges = carry * g.rounds;
    plan.header->slots = g.rounds * round_slots;
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    plan_kernel(const __grid_constant__ Geometry g, const std::int32_t* lengths, void* memory) {
  __shared__ ScanStorage storage;
  const PlanView plan = schedule::plan_view(g, memory);
  const std::int64_t round_cost = prefix_sums<CostScan>(
      storage.cost, plan.cost_prefix, g.requests,
      [&](int i) { return schedule::item_cost(g, schedule::blocks_of(g, lengths[i])); });
  if (threadIdx.x == 0) {
    *plan.header = {};
    plan.header->fingerprint = schedule::fingerprint(g);
    plan.header->total_cost = round_cost * g.rounds;
  }
  __syncthreads();
  if (g.fixed_split > 0) {
    cut_fixed(g, lengths, plan, storage);
  } else {
    cut_balanced(g, lengths, plan, storage);
  }
}

}  // namespace

Status build_plan(const Geometry& geometry, const ConstTensorView& cache_seqlens, Memory plan,
                  const Executor& executor) {
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  LaunchShape shape;
  shape.threads = kThreads;
  return launch(plan_kernel, shape, executor, geometry, static_cast<const std::int32_t*>(cache_seqlens.data),
                plan.data);
}

}  // namespace flashlatent::cuda
