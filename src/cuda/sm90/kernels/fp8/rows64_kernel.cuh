// Decode from an fp8_656 cache, or from e4m3 latents, dense and sparse, and from fp8_584 caches by one or two
// lists, and sparse prefill, 64 query rows a tile: one warpgroup loads, one scores, two multiply with V.
//
//   loader     | 656 (576) bytes a token, as they are in the cache
//   scorer     | S0 = K0 Q^T | S1 = K1 Q^T          | S2 = K2 Q^T          | ...
//   outputs    |             | P0, O_l += V0_l^T P0 | P1, O_l += V1_l^T P1 | ...
//              |             | P0, O_r += V0_r^T P0 | P1, O_r += V1_r^T P1 | ...
//
// Barriers: full and empty of a block's stage (arrivals: the loader's warps and their bytes; all computing
// threads, which have read it). scored and softened of the one place of scores (the scorer; the output
// warpgroups, which have computed P from them). p_free and has_p of the place of P (the output warpgroups
// have done with the previous P; have stored the next one).
#pragma once

#include "cuda/sm90/kernels/fp8/block_loader.cuh"
#include "cuda/sm90/kernels/fp8/rows64_listed.cuh"
#include "cuda/sm90/kernels/fp8/rows64_output.cuh"
#include "cuda/sm90/kernels/fp8/rows64_scorer.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/walk/segment_list.cuh"

namespace flashlatent::fp8::rows64 {

template <class Config>
using MergeStep = sm90::MergeStep<typename Config::Element, Config::kOutputThreads, Config::kRows,
                                  Config::kVDim, 4, 9, Config::kLists>;

/// A call's first item, if parts are whole items by kTurns; else an end.
__device__ __forceinline__ sm90::Work first_by_shapes(const sm90::DecodeArguments& args) {
  if (sm90::is_in_turn(args)) return sm90::whole_part(args);
  sm90::Work unknown;
  unknown.segment.request = -1;
  return unknown;
}

template <class Config>
__device__ __forceinline__ void score(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                      const sm90::QueryMaps& query_maps) {
  Scorer<Config> scorer(shared, args, query_maps);
  bool has_query = false;  // of the first segment
  if constexpr (Config::kAsksAhead) {
    const sm90::Work first = first_by_shapes(args);
    sm90::wait_for_launch_before();
    has_query = scorer.begin_first(first);
  }
  sm90::ListPosition position(shared.segments);
  for (; !position.get().is_end(); position.next()) {
    const sm90::Work& work = position.get();
    const bool begun = has_query;
    has_query = false;
    if (work.blocks() <= 0) {
      if (begun) scorer.forget_first();
      continue;
    }
    if (!begun) scorer.begin(work);
    scorer.look_ahead(position.next_listed());
    scorer.attend(work);
  }
}

template <class Config>
__device__ __forceinline__ void multiply(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                         const sm90::QueryMaps& query_maps) {
  constexpr int kListingWarp = 3;
  if (args.merge_state != nullptr && threadIdx.x >= Config::kOutputThreads - 32) {
    MergeStep<Config>::begin(args, shared.merge);
  }
  Output<Config> output(shared, args, query_maps);
  sm90::list_and_attend<Config::kTurns, Config::kLists>(
      shared.segments, args, kListingWarp, [](std::uint32_t) {},
      [&](const sm90::Work& work) { output.attend(work); });
}

template <class Config>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                     const CUtensorMap& kv_map) {
  // Not load_blocks(): without lists the loader would spill 30 words.
  using BlockLoader = LoaderOf<SharedMemory<Config>>;
  if constexpr (Config::kLists) {
    load_lists(
        args, shared.segments, first_by_shapes(args),
        ListedSegments<SharedMemory<Config>>(args.cache, shared, threadIdx.x - Config::kComputeThreads));
  } else if constexpr (!Config::kE4m3) {
    fp8::load_listed(args, shared.segments,
                     BlockLoader(args.cache, shared, threadIdx.x - Config::kComputeThreads));
  } else if (threadIdx.x < Config::kComputeThreads + BlockLoader::kThreads) {
    sm90::atoms::load_segments(
        args, shared.segments,
        BlockLoader(args.cache, kv_map, shared, threadIdx.x - Config::kComputeThreads));
  }
}

template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared, const sm90::DecodeArguments& args) {
  for (int i = threadIdx.x; i < Config::kVDim; i += Config::kThreads) {
    shared.poisoned_rows[i].clear();
  }
  if (threadIdx.x == 0) {
    for (int& poisoned : shared.poisoned) poisoned = 0;
    for (int& restarts : shared.restarts) restarts = 0;
    if constexpr (Config::kAsksAhead) shared.lists.next_query.request = -1;
    if constexpr (Config::kEdges) shared.edges.turned = 0;
    shared.segments.init(Config::kComputeThreads + LoaderOf<SharedMemory<Config>>::kThreads);
    MergeStep<Config>::init(shared.merge);
    ptx::init(shared.has_query, args.query.rows_in_boxes ? 1 : 128);  // who asks, or the scorer's threads
    if constexpr (Config::kAsksAhead) ptx::init(shared.lists.first_query, 1);
    ptx::init(shared.scored, 128);
    ptx::init(shared.softened, Config::kOutputThreads);
    ptx::init(shared.p_free, Config::kOutputThreads);
    ptx::init(shared.has_p, Config::kOutputThreads);
    for (ptx::Barrier& barrier : shared.full) ptx::init(barrier, LoaderOf<SharedMemory<Config>>::kArrivals);
    for (ptx::Barrier& barrier : shared.empty) ptx::init(barrier, Config::kComputeThreads);
    ptx::publish_barriers();
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
  static_assert(offsetof(SharedMemory<Config>, blocks) - offsetof(SharedMemory<Config>, p) ==
                (Config::kRopeIsValue ? 2 : 1) * Config::kTileBytes);
  if (threadIdx.x == Config::kOutputThreads && args.query.rows_in_boxes)
    sm90::prefetch_query_maps<Config::kQkDim>(query_maps);
  if (Config::kBoxes && threadIdx.x == Config::kComputeThreads) ptx::prefetch_map(kv_map);
  if constexpr (Config::kEdges) sm90::fetch_constants(args.edges);
  set_up<Config>(shared, args);
  if constexpr (!Config::kAsksAhead) sm90::wait_for_launch_before();  // else what shapes tell comes before
  if (threadIdx.x >= Config::kComputeThreads) {
    ptx::give_registers<Config::kLoaderRegisters>();
    load<Config>(shared, args, kv_map);
  } else if (threadIdx.x >= Config::kOutputThreads) {
    ptx::give_registers<Config::kScorerRegisters>();
    score<Config>(shared, args, query_maps);
  } else {
    ptx::take_registers<Config::kOutputRegisters>();
    if constexpr (Config::kAsksAhead) sm90::wait_for_launch_before();
    multiply<Config>(shared, args, query_maps);
    if (args.merge_state != nullptr) MergeStep<Config>(args, shared.merge, shared.blocks).run();
  }
}

}  // namespace flashlatent::fp8::rows64
