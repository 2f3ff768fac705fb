// gqa_128: attention of many query tokens over separate keys and values in pages. It computes prompts
// (prefill) with or without a cached prefix, units of a prefix that requests share, and as gqa_128_split the
// segments of a plan (decode of several query tokens or large groups). A job of a CTA is a tile of 128 query
// rows (d 64: 192; segments: 64 or 128), tokens by heads of a group, so that a group shares its keys and
// values:
//
//   loading warpgroup      the job, Q, and K and V of a block by TMA through the page table, in a ring of
//                          stages; cleans the values of blocks that not every row sees (box_loader.cuh). e4m3
//                          comes as bytes, which it also converts (code_loader.cuh)
//   two warpgroups         (d 64: three) 64 rows each: S = Q K^T, softmax, O += P V with P in registers
//                          (attention.cuh)
#pragma once

#include "cuda/sm90/kernels/gqa_128/attention.cuh"
#include "cuda/sm90/kernels/gqa_128/box_loader.cuh"
#include "cuda/sm90/kernels/gqa_128/code_loader.cuh"

namespace flashlatent::gqa_128 {

template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared, const Arguments& args) {
  if (threadIdx.x == 0) {
    constexpr int kComputeWarps = Config::kComputeThreads / 32;
    // Warps that use a block.
    const int users = Config::kSegments ? kComputeWarps / args.block_sharers : kComputeWarps;
    for (Stage<Config>& stage : shared.stages) {
      ptx::init(stage.keys_full, Config::kE4m3 ? 4 : 1);
      ptx::init(stage.values_full, Config::kE4m3 ? 4 : Config::kSegments ? kCleaners : 1);
      ptx::init(stage.values_landed, 1);
      ptx::init(stage.keys_empty, users);
      ptx::init(stage.values_empty, users);
    }
    if constexpr (Config::kE4m3) {
      for (ptx::Barrier& barrier : shared.key_codes_full) ptx::init(barrier, 1);
      for (ptx::Barrier& barrier : shared.value_codes_full) ptx::init(barrier, 1);
    }
    ptx::init(shared.landed, 1);
    ptx::init(shared.cleaned, 4);
    for (int i = 0; i < kJobSlots; ++i) {
      ptx::init(shared.jobs_full[i], 1);
      ptx::init(shared.jobs_empty[i], Config::kComputeThreads + 3 * 32);  // and three warps that load
    }
    for (int i = 0; i < Config::kWarpgroups; ++i) {
      ptx::init(shared.query_full[i], 1);
      ptx::init(shared.query_empty[i], 4);
    }
    ptx::publish_barriers();
  }
  __syncthreads();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ Arguments args, const __grid_constant__ CUtensorMap keys,
           const __grid_constant__ CUtensorMap values, const __grid_constant__ CUtensorMap query) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  set_up<Config>(shared, args);
  cudaGridDependencySynchronize();            // the previous launch may still write what this one reads
  cudaTriggerProgrammaticLaunchCompletion();  // lets the next launch take its place in the queue

  if (threadIdx.x >= Config::kComputeThreads) {
    ptx::give_registers<Config::kLoaderRegisters>();
    using Loader = std::conditional_t<Config::kE4m3, CodeLoader<Config>, BoxLoader<Config>>;
    Loader(shared, args, keys, values, query).run();
  } else {
    ptx::take_registers<Config::kComputeRegisters>();
    Attention<Config>(shared, args).run();
  }
}

}  // namespace flashlatent::gqa_128
