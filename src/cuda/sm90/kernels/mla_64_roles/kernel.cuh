// mla_64_roles: dense decode with 64 query rows a tile and Q in registers. One warpgroup scores, two multiply
// with V.
#pragma once

#include "cuda/sm90/kernels/mla_64_roles/output.cuh"
#include "cuda/sm90/kernels/mla_64_roles/scorer.cuh"
#include "cuda/sm90/kernels/mla_64_roles/smem_layout.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/walk/shares.cuh"

namespace flashlatent::mla_64_roles {

template <class Config>
inline constexpr bool kIsFp32 = std::is_same_v<typename Config::Stored, float>;  // of partial results
// Half as many parts at a time if partial results are fp32, with twice as many pieces: otherwise registers
// spill, and 48 requests of 4,096 tokens took 0.138 ms, not 0.11.
template <class Config>
using MergeStep = sm90::MergeStep<typename Config::Element, Config::kOutputThreads, sm90::kTileRows,
                                  Config::kVDim, kIsFp32<Config> ? 2 : 4, kIsFp32<Config> ? 4 : 9>;

enum class Role { kLeft = 0, kRight = 1, kScorer = 2 };

template <class Config>
__device__ __forceinline__ void score(SharedMemory<Config>& shared, const sm90::DecodeArguments& args) {
  sm90::wait_for_launch_before();
  Scorer<Config> scorer(shared, args);
  sm90::ListPosition position(shared.segments);
  for (; !position.get().is_end(); position.next()) scorer.score_segment(position.get());
}

template <class Config>
__device__ __forceinline__ void multiply(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                         const CUtensorMap& kv_map, const sm90::QueryMaps& query_maps,
                                         int me) {
  constexpr int kListingWarp = 3;
  sm90::wait_for_launch_before();
  if (args.merge_state != nullptr && threadIdx.x >= Config::kOutputThreads - 32) {
    MergeStep<Config>::begin(args, shared.merge);
  }
  Output<Config> output(shared, args, kv_map, query_maps, me);
  sm90::list_and_attend(
      shared.segments, args, kListingWarp, [&](std::uint32_t parity) { output.begin_list(parity); },
      [&](const sm90::Work& work) { output.attend(work); });
}

/// The roles of sparse prefill. Each warp walks the items by itself, and no warp waits for the pipeline to
/// drain.
template <class Config>
__device__ __forceinline__ void score_turns(SharedMemory<Config>& shared, const sm90::DecodeArguments& args) {
  sm90::wait_for_launch_before();
  Scorer<Config> scorer(shared, args);
  sm90::TurnItems items(shared.turns.items[uniform(threadIdx.x / 32)], args);
  for (; !items.get().is_end(); items.next()) scorer.score_segment(items.get());
}

template <class Config>
__device__ __forceinline__ void multiply_turns(SharedMemory<Config>& shared,
                                               const sm90::DecodeArguments& args, const CUtensorMap& kv_map,
                                               const sm90::QueryMaps& query_maps, int me) {
  sm90::wait_for_launch_before();
  Output<Config> output(shared, args, kv_map, query_maps, me);
  sm90::TurnItems items(shared.turns.items[uniform(threadIdx.x / 32)], args);
  output.begin_turns();
  for (; !items.get().is_end(); items.next()) output.attend(items.get());
}

/// The roles if a part is a share of one request. What follows from shapes is computed before the previous
/// launch is done.
template <class Config>
__device__ __forceinline__ void score_share(SharedMemory<Config>& shared, const sm90::DecodeArguments& args) {
  Scorer<Config> scorer(shared, args);
  sm90::wait_for_launch_before();
  sm90::attend_share(shared.segments, [&](const sm90::Work& work) { scorer.score_segment(work); });
}

template <class Config>
__device__ __forceinline__ void multiply_share(SharedMemory<Config>& shared,
                                               const sm90::DecodeArguments& args, const CUtensorMap& kv_map,
                                               const sm90::QueryMaps& query_maps, int me) {
  sm90::Part<true> part(args);
  Output<Config> output(shared, args, kv_map, query_maps, me);
  sm90::wait_for_launch_before();
  output.begin_share(part);
  sm90::attend_share(shared.segments, [&](const sm90::Work& work) { output.attend(work); });
}

/// By one thread each of some warps: one thread alone takes long.
template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared) {
  if (threadIdx.x == 0) {
    constexpr int kArrivals = Config::kByTokens ? Config::kOutputThreads : 1;
    for (ptx::Barrier& barrier : shared.kv_full) ptx::init(barrier, kArrivals);
    ptx::publish_barriers();
  } else if (threadIdx.x == 32) {
    for (ptx::Barrier& barrier : shared.kv_empty) ptx::init(barrier, Config::kReleases);
    if constexpr (Config::kByTokens) {
      for (auto& live : shared.live) live.init();
    }
    ptx::publish_barriers();
  } else if (threadIdx.x == 64) {
    for (ptx::Barrier& barrier : shared.p_full) ptx::init(barrier, 128);
    for (ptx::Barrier& barrier : shared.p_empty) ptx::init(barrier, Config::kOutputThreads);
    shared.segments.init(Config::kThreads);
    if constexpr (Config::kMerges) MergeStep<Config>::init(shared.merge);
    shared.poisoned = 0;
    ptx::publish_barriers();
  } else if (const int i = static_cast<int>(threadIdx.x) - 128; i >= 0 && i < Config::kVDim / 4) {
    static_assert(sm90::PoisonedRows::kNone == 0xFF && Config::kVDim / 4 <= 256);
    reinterpret_cast<std::uint32_t*>(shared.poisoned_rows)[i] = ~0U;
  }
  __syncthreads();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ sm90::DecodeArguments args, const __grid_constant__ CUtensorMap kv_map,
           const __grid_constant__ sm90::QueryMaps query_maps) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  if (sm90::leaves(args)) return;
  if (threadIdx.x == 0) {
    sm90::prefetch_query_maps<Config::kQkDim>(query_maps);
    ptx::prefetch_map(kv_map);
  }
  set_up<Config>(shared);

  const Role role = static_cast<Role>(threadIdx.x / 128);
  if (role == Role::kScorer) {
    ptx::take_registers<Config::kScorerRegisters>();
    if constexpr (Config::kHasShare) {
      score_share<Config>(shared, args);
    } else if constexpr (Config::kTurns) {
      score_turns<Config>(shared, args);
    } else {
      score<Config>(shared, args);
    }
  } else {
    ptx::give_registers<Config::kOutputRegisters>();
    if constexpr (Config::kHasShare) {
      multiply_share<Config>(shared, args, kv_map, query_maps, threadIdx.x / 128);
    } else if constexpr (Config::kTurns) {
      multiply_turns<Config>(shared, args, kv_map, query_maps, threadIdx.x / 128);
    } else {
      multiply<Config>(shared, args, kv_map, query_maps, threadIdx.x / 128);
    }
    if constexpr (Config::kMerges) {
      if (args.merge_state != nullptr) MergeStep<Config>(args, shared.merge, shared.kv).run();
    }
  }
}

}  // namespace flashlatent::mla_64_roles
