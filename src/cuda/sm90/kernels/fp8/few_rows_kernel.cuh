// Decode from an fp8_656 cache, or from e4m3 latents, dense and sparse, or from fp8_584 caches by lists of
// tokens, and sparse prefill: a warpgroup loads, two compute (few_rows_warpgroup.cuh), each CTA by itself or
// in a team.
#pragma once

#include "cuda/sm90/kernels/fp8/block_loader.cuh"
#include "cuda/sm90/kernels/fp8/few_rows_listed.cuh"
#include "cuda/sm90/kernels/fp8/few_rows_team.cuh"
#include "cuda/sm90/kernels/fp8/few_rows_warpgroup.cuh"
#include "cuda/sm90/load/kv_loader.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/walk/segment_list.cuh"

namespace flashlatent::fp8::few_rows {

template <class Config>
using MergeStep = sm90::MergeStep<typename Config::Element, Config::kComputeThreads, Config::kRows,
                                  Config::kVDim, 4, 9, Config::kLists>;

/// Segments as a computing warp lists them. If shapes tell the segment, the loader announces it, and Q is
/// loaded before.
template <class Config>
__device__ __forceinline__ void compute_listed(SharedMemory<Config>& shared,
                                               const sm90::DecodeArguments& args,
                                               Warpgroup<Config>& warpgroup) {
  constexpr int kNobody = -1, kListingWarp = 3;
  auto begin = [&](const sm90::RowTile& tile, bool has_blocks) {
    warpgroup.prepare(tile);
    warpgroup.begin(has_blocks);
  };
  const bool known = sm90::known_ahead<1>(args);
  if (known) begin(sm90::PartPlace<>(args).only_tile(args), true);
  sm90::list_and_attend<Config::kTurns>(
      shared.segments, args, known ? kNobody : kListingWarp, [](std::uint32_t) {},
      [&](const sm90::Work& work) {
        if (!known) begin(work.tile, work.blocks() > 0);
        warpgroup.attend(work);
        warpgroup.finish();
      });
}

/// The same if the loader announces all segments.
template <class Config>
__device__ __forceinline__ void compute_told(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                             Warpgroup<Config>& warpgroup) {
  sm90::WorkPosition position(shared.segments);
  const sm90::PartPlace<> place(args);
  for (bool known = sm90::known_ahead<1>(args); known || !position.get().is_end(); position.next()) {
    warpgroup.prepare(known ? place.only_tile(args) : position.get().tile);
    warpgroup.begin(known || position.get().blocks() > 0);
    known = false;
    warpgroup.attend(position.get());
    warpgroup.finish();
  }
}

template <class Config>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const sm90::DecodeArguments& args) {
  if constexpr (Config::kMerges) {
    if (threadIdx.x >= Config::kComputeThreads - 32) MergeStep<Config>::begin(args, shared.merge);
  }
  Warpgroup<Config> warpgroup(shared, args);
  if constexpr (Config::kLists) {
    compute_lists(shared, args, warpgroup);
  } else if constexpr (Config::kListsSegments) {
    compute_listed(shared, args, warpgroup);
  } else {
    compute_told(shared, args, warpgroup);
  }
  if constexpr (Config::kMerges) MergeStep<Config>(args, shared.merge, shared.blocks).run();
}

template <class Config>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                     const CUtensorMap* map) {
  const int thread = threadIdx.x - Config::kComputeThreads;
  if (thread >= LoaderOf<SharedMemory<Config>>::kThreads) return;
  if constexpr (Config::kLists) {
    load_lists(shared, args, thread);
  } else if constexpr (Config::kListsSegments) {
    if (sm90::known_ahead<1>(args) && thread < 32) {
      const sm90::PartPlace<> place(args);
      sm90::Work work;
      sm90::find_one_item(args, place, work.segment);  // as a part by shape is
      work.tile = place.only_tile(args);
      sm90::list_share(shared.segments, work);
    }
    load_blocks(shared, args, map, thread);
  } else {
    sm90::WorkPosition position(shared.segments);
    auto tell = [&](const sm90::Work& work) {
      if (thread == 0) position.put(work);
    };
    struct NoPipe {};
    // If the walker looks ahead, 24 bytes of the loader's registers spill.
    sm90::load_segments<1, false>(
        args, LoaderOf<SharedMemory<Config>>(args.cache, shared, thread), NoPipe(),
        sm90::PartPlace<1, Config::kTurns>(args), [] {}, tell);
    sm90::Work end;
    end.segment.request = -1;
    tell(end);
  }
}

template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared) {
  for (int i = threadIdx.x; i < Config::kVDim; i += Config::kThreads) {
    shared.poisoned_rows[i].clear();
  }
  if (threadIdx.x == 0) {
    for (int& poisoned : shared.poisoned) poisoned = 0;
    if constexpr (Config::kTeam > 1) shared.team.init();
    shared.segments.init(Config::kListsSegments
                             ? Config::kComputeThreads + LoaderOf<SharedMemory<Config>>::kThreads
                             : Config::kComputeThreads / 32);
    if constexpr (Config::kMerges) MergeStep<Config>::init(shared.merge);
    ptx::init(shared.has_query, Config::kComputeThreads);
    ptx::init(shared.meeting, Config::kComputeThreads);
    for (int i = 0; i < Config::kWarpgroups; ++i) {
      ptx::init(shared.has_p[i], 128);
    }
    for (int i = 0; i < Config::kSlots; ++i) {
      ptx::init(shared.full[i], LoaderOf<SharedMemory<Config>>::kArrivals);
      ptx::init(shared.empty[i], Config::kComputeThreads);
    }
    ptx::publish_barriers();
  }
  __syncthreads();
}

template <class Config>
__device__ __forceinline__ void run(const sm90::DecodeArguments& args, const CUtensorMap* map) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  if constexpr (Config::kEdges) sm90::fetch_constants(args.edges);
  set_up<Config>(shared);
  const bool loads = threadIdx.x >= Config::kComputeThreads;
  if constexpr (Config::kTeam > 1) {
    ptx::cluster_arrive();
    const sm90::PartPlace<Config::kTeam> place(args);
    ptx::cluster_wait();  // all CTAs' barriers are ready
    if (loads) {
      ptx::give_registers<Config::kLoaderRegisters>();
      load_in_team<Config>(shared, args, map, place);
    } else {
      ptx::take_registers<Config::kComputeRegisters>();
      compute_in_team<Config>(shared, args, place);
    }
  } else {
    if constexpr (!Config::kAlone) sm90::wait_for_launch_before();
    if (loads) {
      ptx::give_registers<Config::kLoaderRegisters>();
      load<Config>(shared, args, map);
    } else {
      ptx::take_registers<Config::kComputeRegisters>();
      compute<Config>(shared, args);
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ sm90::DecodeArguments args) {
  run<Config>(args, nullptr);
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel_with_map(const __grid_constant__ sm90::DecodeArguments args,
                    const __grid_constant__ CUtensorMap kv_map) {
  if (Config::kBoxes && threadIdx.x == Config::kComputeThreads) ptx::prefetch_map(kv_map);
  run<Config>(args, &kv_map);
}

}  // namespace flashlatent::fp8::few_rows
