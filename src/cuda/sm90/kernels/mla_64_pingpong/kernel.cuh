// Dense decode, 64 query rows a tile, two KV blocks in flight ("mla_64_pingpong").
//
// Two warpgroups compute (warpgroup.cuh says how they divide the work), one or two load.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/line.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/share.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/team.cuh"

namespace flashlatent::mla_64_pingpong {

enum class Role { kLeft = 0, kRight = 1, kLoader = 2 };

/// All threads of the CTA, or of the cluster.
template <class Config>
__device__ __forceinline__ void meet_cluster() {
  if constexpr (Config::kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
}

/// By one thread of each of some warps: one thread alone takes long, and so do lanes of one warp, which run
/// one after another.
template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared) {
  static_assert(Config::kVDim % 4 == 0 && Config::kVDim / 4 <= 128);
  auto init_buffer = [&](int buffer) {
    typename Config::State& state = shared.state[buffer];
#pragma unroll
    for (int chunk = 0; chunk < Config::kQkChunks; ++chunk) {
      ptx::init(state.full[chunk], Config::Loader::kArrivals);
      // In a cluster also one arrival of each warp of the other CTA.
      ptx::init(state.empty[chunk], sm90::kReleases<typename Config::Loader> + (Config::kCluster - 1) * 4);
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
    if constexpr (Config::kAtOnce) {
      ptx::init(shared.team.received, 1);
    } else if constexpr (Config::kTeam > 1) {
      ptx::init(shared.team.received, TeamMerge<Config>::kArrivals);
    }
    ptx::init(shared.q_full, 1);
    ptx::init(shared.q_empty, Config::kComputeThreads / 32);
    ptx::publish_barriers();
  } else if (const int i = static_cast<int>(threadIdx.x) - 128; i >= 0 && i < Config::kVDim / 4) {
    static_assert(sm90::PoisonedRows::kNone == 0xFF);
    reinterpret_cast<std::uint32_t*>(shared.poisoned_rows)[i] = ~0U;
  }
  meet_cluster<Config>();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ sm90::DecodeArguments args, const __grid_constant__ CUtensorMap kv_map,
           const __grid_constant__ sm90::QueryMaps query_maps) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  if (sm90::leaves(args)) return;
  if (threadIdx.x == Config::kComputeThreads) {
    Config::Loader::prepare(kv_map);
    if (args.query.rows_in_boxes) sm90::prefetch_query_maps<Config::kQkDim>(query_maps);
  }
  set_up<Config>(shared);

  const Role role = Config::kLoaderThreads == 128 || threadIdx.x < Config::kComputeThreads
                        ? static_cast<Role>(threadIdx.x / 128)
                        : Role::kLoader;
  if (role == Role::kLoader) {
    ptx::give_registers<Config::kRegisters.load>();
    if constexpr (Config::kLoadsFirst) {
      return load_share<Config>(shared, args, kv_map, query_maps);
    } else if constexpr (Config::kHasShare) {
      load_share_alone<Config>(shared, args, kv_map, query_maps);
    } else {
      load<Config>(shared, args, kv_map, query_maps);
    }
  } else {
    ptx::take_registers<Config::kRegisters.compute>();
    if constexpr (Config::kLoadsFirst) {
      return compute_share<Config>(shared, args, query_maps, threadIdx.x / 128);
    } else if constexpr (Config::kHasShare) {
      compute_share_alone<Config>(shared, args, query_maps, threadIdx.x / 128);
    } else if constexpr (Config::kTeam > 1) {
      compute<TeamWarpgroup<Config>>(shared, args, query_maps, threadIdx.x / 128);
    } else if constexpr (Config::kSharesCode) {
      compute<LineWarpgroup<Config>>(shared, args, query_maps, threadIdx.x / 128);
    } else if (role == Role::kLeft) {
      compute<LineWarpgroup<Config>>(shared, args, query_maps, 0);
    } else {
      compute<LineWarpgroup<Config>>(shared, args, query_maps, 1);
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

}  // namespace flashlatent::mla_64_pingpong
