// Decode from records, mxfp8_528 and nvfp4_288, by one or two lists of tokens, 64 query rows a tile: as with
// fewer rows (records_kernel.cuh) a token's bytes become fp16 once, as A operand of K Q^T, and are stored as
// V. Half of the output is 128 registers of a thread, so there is one scorer, and P is left to the outputs.
//
//   loader    | 16 tokens a warp and stage, as they are in the cache
//   scorer    | S0, V0 -> tiles | S1, V1 -> tiles   | S2, V2 -> tiles   | ...
//   outputs   |                 | P0, O_l += P0 V0l | P1, O_l += P1 V1l | ...
//             |                 | P0, O_r += P0 V0r | P1, O_r += P1 V1r | ...
//
// Barriers: full and empty of a stage. scored (the scorer): exponents and values of a block are there; read
// (the outputs) of the one place of exponents; free of the three places of half of a block's values.
#pragma once

#include "cuda/sm90/kernels/fp8/few_rows_listed.cuh"
#include "cuda/sm90/kernels/fp8/record_copies.cuh"
#include "cuda/sm90/kernels/fp8/records64_output.cuh"
#include "cuda/sm90/kernels/fp8/records64_scorer.cuh"

namespace flashlatent::fp8::records64 {

template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared) {
  if (threadIdx.x == 0) {
    shared.segments.init(Config::kLoadersBegin / 32);
    ptx::init(shared.has_query, Config::kComputeThreads);
    ptx::init(shared.query_ready, Config::kComputeThreads);
    ptx::init(shared.scored, 128);
    ptx::init(shared.read, Config::kComputeThreads);
    for (ptx::Barrier& barrier : shared.free) ptx::init(barrier, 128);
    init_stages(shared);
    ptx::publish_barriers();
  }
  __syncthreads();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ sm90::DecodeArguments args) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= few_rows::kMaxSharedBytes);
  if constexpr (Config::kEdges) sm90::fetch_constants(args.edges);
  set_up<Config>(shared);
  if constexpr (!Config::kAlone) sm90::wait_for_launch_before();
  if (threadIdx.x >= Config::kLoadersBegin) {
    ptx::give_registers<Config::kLoaderRegisters>();
    few_rows::load_lists(shared, args, threadIdx.x - Config::kLoadersBegin);
  } else if (threadIdx.x >= Config::kComputeThreads) {
    ptx::give_registers<Config::kScorerRegisters>();  // none, but else ptxas has fewer for this role
    if constexpr (Config::kAlone) sm90::wait_for_launch_before();
    Scorer<Config> scorer(shared, args);
    for (sm90::WorkPosition position(shared.segments); !position.get().is_end(); position.next()) {
      scorer.attend(position.get());
    }
  } else {
    ptx::take_registers<Config::kOutputRegisters>();
    Output<Config> output(shared, args);
    few_rows::compute_lists(shared, args, output);
  }
}

}  // namespace flashlatent::fp8::records64
