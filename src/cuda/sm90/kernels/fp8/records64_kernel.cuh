// Decode from records, mxfp8_528 and nvfp4_288, by one or two lists of tokens, 64 query rows a tile: as with
// fewer rows (records_kernel.cuh) a token's bytes become fp16 once, as A operand of K Q^T, and are stored as
// V. Half of the output is 128 registers of a thread, so there is one scorer, which makes P, too. The outputs
// only multiply, both operands from shared memory: the last half of the columns at once, since the scorer
// needs its place, the first half while the next P is made and tensor cores have nothing else to do.
//
//   loader  | 16 tokens a warp and stage, as they are in the cache
//   scorer  | S0, V0 -> tiles | P0 | S1, V1 -> tiles | P1          | S2, V2 -> tiles | ...
//   outputs |                      | O_r += P0 V0r                 | O_r += P1 V1r   | ...
//           |                                        | O_l += P0 V0l                 | ...
//
// Barriers: full and empty of a stage. has_p of the two places of P (the scorer): P, values and statistics of
// a block are there. free of the three places of half of a block's values, calm: see SharedMemory. finished
// and rows_read of an item: what rows end with is there; has been read.
#pragma once

#include "cuda/sm90/kernels/fp8/few_rows_listed.cuh"
#include "cuda/sm90/kernels/fp8/record_copies.cuh"
#include "cuda/sm90/kernels/fp8/records64_output.cuh"
#include "cuda/sm90/kernels/fp8/records64_scorer.cuh"

namespace flashlatent::fp8::records64 {

template <class Config>
__device__ __forceinline__ void set_up(SharedMemory<Config>& shared, const sm90::DecodeArguments& args) {
  if (threadIdx.x == 0) {
    shared.segments.init(Config::kLoadersBegin / 32);
    shared.lists.next_query.request = -1;
    ptx::init(shared.has_query, args.query.rows_in_boxes ? 1 : 128);  // who asks, or the scorer's threads
    ptx::init(shared.lists.first_query, 1);
    for (ptx::Barrier& barrier : shared.has_p) ptx::init(barrier, 128);
    ptx::init(shared.calm, 128);
    ptx::init(shared.finished, 128);
    ptx::init(shared.rows_read, Config::kOutputThreads);
    for (ptx::Barrier& barrier : shared.free) ptx::init(barrier, 128);
    init_stages(shared);
    ptx::publish_barriers();
  }
  __syncthreads();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ sm90::DecodeArguments args, const __grid_constant__ CUtensorMap,
           const __grid_constant__ sm90::QueryMaps query_maps) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= few_rows::kMaxSharedBytes);
  if (threadIdx.x == Config::kOutputThreads && args.query.rows_in_boxes)
    sm90::prefetch_query_maps<Config::kQkDim>(query_maps);
  if constexpr (Config::kEdges) sm90::fetch_constants(args.edges);
  set_up<Config>(shared, args);
  if constexpr (!Config::kAlone) sm90::wait_for_launch_before();
  if (threadIdx.x >= Config::kLoadersBegin) {
    ptx::give_registers<Config::kLoaderRegisters>();
    few_rows::load_lists(shared, args, threadIdx.x - Config::kLoadersBegin, [&](const sm90::Work& next) {
      if (!next.is_end()) rows64::Query<SharedMemory<Config>>::bring_to_l2(args, next.tile);
    });
  } else if (threadIdx.x >= Config::kOutputThreads) {
    ptx::take_registers<Config::kScorerRegisters>();
    score_items(shared, args, query_maps);
  } else {
    ptx::take_registers<Config::kOutputRegisters>();
    if constexpr (Config::kAlone) sm90::wait_for_launch_before();
    Output<Config> output(shared, args);
    for (sm90::WorkPosition position(shared.segments); !position.get().is_end(); position.next()) {
      output.attend(position.get());
    }
  }
}

}  // namespace flashlatent::fp8::records64
