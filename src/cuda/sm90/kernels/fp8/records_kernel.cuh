// Decode from records, mxfp8_528 and nvfp4_288, by one or two lists of tokens, up to 32 query rows a tile.
//
// A token is read once: the bytes of a block become fp16 in registers, exactly and in units of tokens, as A
// operand of K Q^T, and are stored as they are, as A operand of V^T P^T. So formats differ in what reads a
// stage (record_keys.cuh), and in nothing else.
//
//   loader    | 16 tokens a warp and stage, as they are in the cache
//   scorer 0  | S0, V0 -> tiles | P0 | S2, V2 -> tiles       | P2 | ...
//   scorer 1  | S1, V1 -> tiles      | P1 | S3, V3 -> tiles       | P3 | ...
//   output    |                      | O += V0^T P0 | O += V1^T P1    | ...
//
// Barriers: full and empty of a stage (a loading warp's bytes; the 32 lanes that have read it). has_p of a
// scorer's block (128): values, P and statistics. free of its halves (128): the output has read them.
#pragma once

#include "cuda/sm90/kernels/fp8/few_rows_listed.cuh"
#include "cuda/sm90/kernels/fp8/record_copies.cuh"
#include "cuda/sm90/kernels/fp8/records_output.cuh"
#include "cuda/sm90/kernels/fp8/records_scorer.cuh"

namespace flashlatent::fp8::records {

template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared) {
  if (threadIdx.x == 0) {
    shared.segments.init(Config::kLoadersBegin / 32);
    ptx::init(shared.has_query, Config::kComputeThreads);
    ptx::init(shared.scorers_meet, Config::kComputeThreads);
    ptx::init(shared.all_meet, Config::kLoadersBegin);
    for (ptx::Barrier& barrier : shared.has_p) ptx::init(barrier, 128);
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
    ptx::take_registers<Config::kOutputRegisters>();
    if constexpr (Config::kAlone) sm90::wait_for_launch_before();
    Output<Config> output(shared, args);
    for (sm90::WorkPosition position(shared.segments); !position.get().is_end(); position.next()) {
      output.attend(position.get());
    }
  } else {
    ptx::take_registers<Config::kScorerRegisters>();
    Scorer<Config> scorer(shared, args);
    few_rows::compute_lists(shared, args, scorer);
  }
}

}  // namespace flashlatent::fp8::records
