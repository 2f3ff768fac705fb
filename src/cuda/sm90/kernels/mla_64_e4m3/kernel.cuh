// Decode and sparse prefill from an e4m3 latent cache with e4m3 products: one warpgroup loads, one scores,
// two multiply with V.
//
//   loader     | 576 bytes a token, as they are in the cache
//   scorer     | S0 = Q K0^T, P0 | S1 = Q K1^T, P1    | S2 = Q K2^T, P2    | ...
//   outputs    |                 | O_l += V0_l^T P0^T | O_l += V1_l^T P1^T | ...
//              |                 | O_r += V0_r^T P0^T | O_r += V1_r^T P1^T | ...
//
// Barriers: full and empty of a block's stage (arrivals: the loader; all computing threads, which have read
// it), has_p and p_free of a place of P (the scorer; the output warpgroups).
#pragma once

#include "cuda/sm90/kernels/mla_64_e4m3/loader.cuh"
#include "cuda/sm90/kernels/mla_64_e4m3/output.cuh"
#include "cuda/sm90/kernels/mla_64_e4m3/scorer.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/walk/shares.cuh"

namespace flashlatent::mla_64_e4m3 {

template <class Config>
using MergeStep = sm90::MergeStep<typename Config::Element, Config::kOutputThreads, Config::kRows,
                                  Config::kVDim, 4, 9, Config::kLists>;

template <class Config>
__device__ __forceinline__ void score(SharedMemory<Config>& shared, const sm90::DecodeArguments& args) {
  Scorer<Config> scorer(shared, args);
  sm90::ListPosition position(shared.segments);
  for (; !position.get().is_end(); position.next()) {
    const sm90::Work& work = position.get();
    if (work.blocks() <= 0) continue;
    scorer.begin(work);
    scorer.attend(work);
  }
}

/// Lists the part's next segments, by one warp.
template <class Config>
__device__ __forceinline__ void list(sm90::SegmentList& segments, const sm90::DecodeArguments& args,
                                     bool is_first) {
  if constexpr (!Config::kLists && !Config::kTurns) {
    if (schedule::combines_shares(args.geometry.partition)) {
      return sm90::list_share(segments, sm90::Part<true>(args).find());
    }
  }
  sm90::list_segments<Config::kTurns, Config::kLists>(segments, args, is_first);
}

template <class Config>
__device__ __forceinline__ void multiply(SharedMemory<Config>& shared, const sm90::DecodeArguments& args) {
  constexpr int kListingWarp = 3;
  if (args.merge_state != nullptr && threadIdx.x >= Config::kOutputThreads - 32) {
    MergeStep<Config>::begin(args, shared.merge);
  }
  Output<Config> output(shared, args);
  sm90::ListPosition position(shared.segments);
  bool is_first = true;
  do {
    if (threadIdx.x / 32 == kListingWarp) list<Config>(shared.segments, args, is_first);
    is_first = false;
    __syncwarp();
    do {
      if (position.get().is_end()) return;
      output.attend(position.get());
    } while (!position.next());
  } while (true);
}

/// From the registers that a launch gives each thread.
template <int kRegisters>
__device__ __forceinline__ void set_registers() {
  constexpr int kOfLaunch = 128;
  if constexpr (kRegisters < kOfLaunch) {
    ptx::give_registers<kRegisters>();
  } else if constexpr (kRegisters > kOfLaunch) {
    ptx::take_registers<kRegisters>();
  }
}

template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared) {
  using LoaderOf = Loader<SharedMemory<Config>>;
  if (threadIdx.x == 0) {
    shared.segments.init(Config::kComputeThreads + LoaderOf::kThreads);
    MergeStep<Config>::init(shared.merge);
    for (int i = 0; i < Config::kSlots; ++i) {
      ptx::init(shared.full[i], LoaderOf::kArrivals);
      ptx::init(shared.empty[i], Config::kComputeThreads);
    }
    for (int i = 0; i < Config::kPlaces; ++i) {
      ptx::init(shared.has_p[i], 128);
      ptx::init(shared.p_free[i], Config::kOutputThreads);
      for (std::uint8_t& shrinks : shared.scales[i].shrinks) shrinks = 0;
    }
    ptx::publish_barriers();
  }
  __syncthreads();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ sm90::DecodeArguments args, const __grid_constant__ CUtensorMap kv_map) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  using LoaderOf = Loader<SharedMemory<Config>>;
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  if (Config::kBoxes && threadIdx.x == Config::kComputeThreads) ptx::prefetch_map(kv_map);
  set_up<Config>(shared);
  sm90::wait_for_launch_before();
  if (threadIdx.x >= Config::kComputeThreads) {
    ptx::give_registers<Config::kLoaderRegisters>();
    const int thread = threadIdx.x - Config::kComputeThreads;
    if (thread < LoaderOf::kThreads) {
      sm90::atoms::load_segments(args, shared.segments, LoaderOf(args.cache, kv_map, shared, thread));
    }
  } else if (threadIdx.x >= Config::kOutputThreads) {
    set_registers<Config::kScorerRegisters>();
    score<Config>(shared, args);
  } else {
    set_registers<Config::kOutputRegisters>();
    multiply<Config>(shared, args);
    if (args.merge_state != nullptr) MergeStep<Config>(args, shared.merge, shared.blocks).run();
  }
}

}  // namespace flashlatent::mla_64_e4m3
