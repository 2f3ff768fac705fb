// Decode from an fp8_656 cache, dense and sparse: a warpgroup loads, two compute (warpgroup.cuh), each CTA
// by itself or in a team.
#pragma once

#include "cuda/direct/loader.cuh"
#include "cuda/direct/team.cuh"
#include "cuda/direct/warpgroup.cuh"
#include "cuda/parts/kv_loader.cuh"
#include "cuda/parts/merge_step.cuh"
#include "cuda/parts/segment_list.cuh"

namespace flashlatent::direct {

template <class Config>
using MergeStep =
    parts::MergeStep<typename Config::Element, Config::kComputeThreads, Config::kRows, Config::kVDim>;

/// A warp with registers to spare lists segments, unless the loader knows the only one by shape: then Q is
/// asked for before it tells.
template <class Config>
__device__ __forceinline__ void walk_list(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                          Warpgroup<Config>& warpgroup) {
  constexpr int kListingWarp = 3;
  const parts::PartPlace<> place(args);
  parts::ListPosition position(shared.segments);
  bool known = parts::known_ahead<1>(args), is_first = true;
  for (;;) {
    if (!known && threadIdx.x / 32 == kListingWarp) parts::list_segments(shared.segments, args, is_first);
    is_first = false;
    __syncwarp();
    do {
      if (!known && position.get().is_end()) return;
      warpgroup.prepare(known ? place.only_tile(args) : position.get().tile);
      warpgroup.begin(known || position.get().blocks() > 0);
      known = false;
      warpgroup.attend(position.get());
      warpgroup.finish();
    } while (!position.next());
  }
}

template <class Config>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const parts::DecodeArguments& args) {
  if constexpr (Config::kMerges) {
    if (threadIdx.x >= Config::kComputeThreads - 32) MergeStep<Config>::begin(args, shared.merge);
  }
  Warpgroup<Config> warpgroup(shared, args);
  walk_list(shared, args, warpgroup);
  if constexpr (Config::kMerges) MergeStep<Config>(args, shared.merge, shared.blocks).run();
}

template <class Config>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const parts::DecodeArguments& args) {
  const int thread = threadIdx.x - Config::kComputeThreads;
  if (parts::known_ahead<1>(args) && thread < 32) {
    const parts::PartPlace<> place(args);
    parts::Work work;
    parts::find_one_item(args, place, work.segment);  // as a part by shape is
    work.tile = place.only_tile(args);
    parts::list_share(shared.segments, work);
  }
  load_listed(args, shared.segments, Loader<SharedMemory<Config>>(args.cache, shared, thread));
}

template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared) {
  for (int i = threadIdx.x; i < Config::kVDim; i += Config::kThreads) {
    shared.poison_from[i] = parts::kNoPoison;
  }
  if (threadIdx.x == 0) {
    for (int& poisoned : shared.poisoned) poisoned = 0;
    if constexpr (Config::kTeam > 1) shared.team.init();
    shared.segments.init(Config::kTeam > 1 ? Config::kComputeThreads / 32 : Config::kThreads);
    if constexpr (Config::kMerges) MergeStep<Config>::init(shared.merge);
    ptx::init(shared.has_query, Config::kComputeThreads);
    ptx::init(shared.meeting, Config::kComputeThreads);
    for (int i = 0; i < Config::kWarpgroups; ++i) {
      ptx::init(shared.has_p[i], 128);
    }
    for (int i = 0; i < Config::kSlots; ++i) {
      ptx::init(shared.full[i], 4);
      ptx::init(shared.empty[i], Config::kComputeThreads);
    }
    ptx::publish_barriers();
  }
  __syncthreads();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ parts::DecodeArguments args) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  set_up<Config>(shared);
  const bool loads = threadIdx.x >= Config::kComputeThreads;
  if constexpr (Config::kTeam > 1) {
    ptx::cluster_arrive();
    const parts::PartPlace<Config::kTeam> place(args);
    ptx::cluster_wait();  // all CTAs' barriers are there
    if (loads) {
      ptx::give_registers<Config::kLoaderRegisters>();
      load_in_team<Config>(shared, args, place);
    } else {
      ptx::take_registers<Config::kComputeRegisters>();
      compute_in_team<Config>(shared, args, place);
    }
  } else {
    parts::wait_for_launch_before();
    if (loads) {
      ptx::give_registers<Config::kLoaderRegisters>();
      load<Config>(shared, args);
    } else {
      ptx::take_registers<Config::kComputeRegisters>();
      compute<Config>(shared, args);
    }
  }
}

}  // namespace flashlatent::direct
