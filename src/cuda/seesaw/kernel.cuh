// Dense decode, 64 query rows a tile, two KV blocks in flight ("seesaw").
//
// Two warpgroups that compute (warpgroup.cuh has how they share the work), one or two that load.
#pragma once

#include "cuda/parts/kv_loader.cuh"
#include "cuda/parts/merge_step.cuh"
#include "cuda/parts/work_queue.cuh"
#include "cuda/seesaw/shares.cuh"
#include "cuda/seesaw/smem_layout.cuh"
#include "cuda/seesaw/team.cuh"
#include "cuda/seesaw/warpgroup.cuh"

namespace flashlatent::seesaw {

// Most rows have two parts: by twos fp16, whose pieces are twice as many, takes 1.2 % less than by fours,
// which spills more registers.
template <class Config>
using MergeStep =
    parts::MergeStep<typename Config::Element, Config::kComputeThreads, parts::kTileRows, Config::kVDim, 2>;

enum class Role { kLeft = 0, kRight = 1, kLoader = 2 };

template <class Config>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                        const CUtensorMap& query_map, int me) {
  parts::wait_for_launch_before();
  if constexpr (Config::kMerges) {
    if (args.merge_state != nullptr && threadIdx.x >= Config::kComputeThreads - 32) {
      MergeStep<Config>::begin(args, shared.merge);
    }
  }
  Warpgroup<Config> warpgroup(shared, args, query_map, me);
  parts::WorkPosition position(shared.work);
  if (threadIdx.x < 32) warpgroup.request_query(position.get());
  for (; !position.get().is_end(); position.next()) {
    const parts::Work& work = position.get();
    warpgroup.attend(work);
    if (threadIdx.x < 32) warpgroup.request_query(position.ahead().get());
    if constexpr (Config::kTeam > 1) {
      warpgroup.finish_in_team(work);
    } else {
      warpgroup.finish(work);
    }
  }
}

template <class Config>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                     const CUtensorMap& map) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  const parts::PartPlace<Config::kTeam> place(args);
  parts::wait_for_launch_before();
  if (thread >= Loader::threads(args.cache)) return;
  parts::WorkPosition position(shared.work);
  auto tell = [&](const parts::Work& work) {
    if (thread == 0) position.put(work);
  };
  parts::load_segments<Config::kTeam>(
      args, Loader(args.cache, map, thread, shared.loader), Pipe<Config>(shared.kv, shared.state), place,
      [] {}, tell);
  parts::Work end;
  end.segment.request = -1;
  tell(end);
}

/// The roles where a part is a share of one request, from an fp8_656 cache: both know their part, and begin
/// with it when the launch before is done. The computing warps load the first blocks and take their segment
/// from the queue after that, as others do.
template <class Config>
__device__ __forceinline__ void compute_share(SharedMemory<Config>& shared,
                                              const parts::DecodeArguments& args,
                                              const CUtensorMap& query_map, int me) {
  Part<Config> part(args);
  Warpgroup<Config> warpgroup(shared, args, query_map, me);
  parts::wait_for_launch_before();
  const parts::Work& work = part.find();
  if (work.is_end()) return leave_cluster();
  warpgroup.load_first_block(work);
  parts::WorkPosition position(shared.work);
  // A loop of one turn, as below.
  for (; !position.get().is_end(); position.next()) {
    warpgroup.attend(position.get());
    warpgroup.finish_in_lines(position.get());
  }
}

template <class Config>
__device__ __forceinline__ void load_share(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                           const CUtensorMap& map, const CUtensorMap& query_map) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  static_assert(Loader::kThreads == Config::kLoaderThreads);
  Part<Config> part(args);
  parts::wait_for_launch_before();
  const parts::Work& work = part.find();
  if (!work.is_end()) {
    if (thread == 0) {
      parts::WorkPosition position(shared.work);
      position.put(work);
      parts::Work end;
      end.segment.request = -1;
      position.put(end);
    }
    if (thread / 32 == 1 && work.blocks() > 0 && args.query.rows_in_line && ptx::elect_one()) {
      copy_query(shared, args, query_map, work.tile);
    }
    __syncwarp();
    Pipe<Config> pipe(shared.kv, shared.state);
    parts::BlockRange range = parts::block_range(args.cache, work.segment, work.tile);
    for (int i = 0; i < kFirstBlocks && range.begin < range.end; ++i, ++range.begin) pipe.next_block();
    Loader loader(args.cache, map, thread, shared.loader);
    loader.look_ahead(range);
    loader.load(pipe, range, [] {});
  }
  leave_cluster();
}

/// The same by a CTA alone, from a bf16 or fp16 cache.
template <class Config>
__device__ __forceinline__ void compute_share_alone(SharedMemory<Config>& shared,
                                                    const parts::DecodeArguments& args,
                                                    const CUtensorMap& query_map, int me) {
  parts::wait_for_launch_before();
  Warpgroup<Config> warpgroup(shared, args, query_map, me);
  parts::WorkPosition position(shared.work);
  if (threadIdx.x < 32) warpgroup.request_query(position.get());
  // A loop of one turn: without it ptxas makes descriptors' addresses anew for each product (316 R2UR).
  for (; !position.get().is_end(); position.next()) {
    warpgroup.attend(position.get());
    warpgroup.finish(position.get());
  }
}

template <class Config>
__device__ __forceinline__ void load_share_alone(SharedMemory<Config>& shared,
                                                 const parts::DecodeArguments& args, const CUtensorMap& map) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  Part<Config> part(args);
  parts::wait_for_launch_before();
  if (thread >= Loader::threads(args.cache)) return;
  parts::WorkPosition position(shared.work);
  auto tell = [&](const parts::Work& work) {
    if (thread == 0) position.put(work);
  };
  const parts::Work& work = part.find();
  if (!work.is_end()) {
    tell(work);
    const parts::BlockRange range = parts::block_range(args.cache, work.segment, work.tile);
    Pipe<Config> pipe(shared.kv, shared.state);
    Loader loader(args.cache, map, thread, shared.loader);
    loader.look_ahead(range);
    loader.load(pipe, range, [] {});
  }
  parts::Work end;
  end.segment.request = -1;
  tell(end);
}

/// All threads of the CTA, or of the cluster.
template <class Config>
__device__ __forceinline__ void meet_cluster() {
  if constexpr (Config::kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
}

/// By a thread each of some warps: one alone takes long, and so do lanes of one, one after another.
template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared) {
  static_assert(Config::kVDim % 4 == 0 && Config::kVDim / 4 <= 128);
  auto init_buffer = [&](int buffer) {
    typename Config::State& state = shared.state[buffer];
#pragma unroll
    for (int chunk = 0; chunk < Config::kQkChunks; ++chunk) {
      ptx::init(state.full[chunk], Config::Loader::kArrivals);
      // In a cluster also one of each warp of the other CTA's.
      ptx::init(state.empty[chunk], parts::kReleases<typename Config::Loader> + (Config::kCluster - 1) * 4);
    }
    ptx::publish_barriers();
  };
  if (threadIdx.x == 0) {
    init_buffer(0);
  } else if (threadIdx.x == 32) {
    init_buffer(1);
  } else if (threadIdx.x == 64) {
    shared.work.init(Config::kComputeThreads / 32);
    ptx::publish_barriers();
  } else if (threadIdx.x == 96) {
    shared.poisoned[0] = shared.poisoned[1] = 0;
    for (ptx::Barrier& barrier : shared.handed_over) ptx::init(barrier, 128);
    ptx::init(shared.meeting, Config::kComputeThreads);
    if constexpr (Config::kMerges) MergeStep<Config>::init(shared.merge);
    ptx::init(shared.scored, 4);
    if constexpr (Config::kTeam > 1) ptx::init(shared.team.received, TeamMerge<Config>::kArrivals);
    ptx::init(shared.q_full, 1);
    ptx::init(shared.q_empty, Config::kComputeThreads / 32);
    ptx::publish_barriers();
  } else if (const int i = static_cast<int>(threadIdx.x) - 128; i >= 0 && i < Config::kVDim / 4) {
    static_assert(parts::kNoPoison == 0xFF);
    reinterpret_cast<std::uint32_t*>(shared.poison_from)[i] = ~0U;
  }
  meet_cluster<Config>();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ parts::DecodeArguments args, const __grid_constant__ CUtensorMap kv_map,
           const __grid_constant__ CUtensorMap query_map) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  if (threadIdx.x == Config::kComputeThreads) {
    Config::Loader::prepare(kv_map);
    if (args.query.rows_in_line) ptx::prefetch_map(query_map);
  }
  set_up<Config>(shared);

  const Role role = Config::kLoaderThreads == 128 || threadIdx.x < Config::kComputeThreads
                        ? static_cast<Role>(threadIdx.x / 128)
                        : Role::kLoader;
  if (role == Role::kLoader) {
    ptx::give_registers<Config::kRegisters.load>();
    if constexpr (Config::kHasShare && Config::kCluster == 1) {
      return load_share_alone<Config>(shared, args, kv_map);
    } else if constexpr (Config::kHasShare) {
      return load_share<Config>(shared, args, kv_map, query_map);
    } else {
      load<Config>(shared, args, kv_map);
    }
  } else {
    ptx::take_registers<Config::kRegisters.compute>();
    if constexpr (Config::kHasShare && Config::kCluster == 1) {
      return compute_share_alone<Config>(shared, args, query_map, threadIdx.x / 128);
    } else if constexpr (Config::kHasShare) {
      return compute_share<Config>(shared, args, query_map, threadIdx.x / 128);
    } else if constexpr (Config::kSharesCode) {
      compute<Config>(shared, args, query_map, threadIdx.x / 128);
    } else if (role == Role::kLeft) {
      compute<Config>(shared, args, query_map, 0);
    } else {
      compute<Config>(shared, args, query_map, 1);
    }
    if constexpr (Config::kMerges) {
      if (args.merge_state != nullptr) MergeStep<Config>(args, shared.merge, shared.q).run();
    }
  }
  if constexpr (Config::kCluster > 1) {
    __syncwarp();
    ptx::cluster_sync();  // until then the other CTA may arrive here
  }
}

}  // namespace flashlatent::seesaw
