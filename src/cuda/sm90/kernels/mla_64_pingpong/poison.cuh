// V of dead tokens must not reach the output: a weight of 0 does not silence NaN. Values of V that are not
// finite, in tokens that only some rows see, must reach these rows' outputs alone.
// Unless a loader writes zeros for dead tokens, a warpgroup silences a block only if its scores say so
// (math/finite_scores.cuh).
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/phases.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/smem_layout.cuh"
#include "cuda/sm90/math/fragment.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::mla_64_pingpong {

inline constexpr int kAlone = 1;  // + kMe: the named barrier of one warpgroup

/// Silences tokens of warpgroup kMe's block: those that are not `live`, and values that are not finite in
/// tokens that only some rows see (`partial`), which spread_poison() then puts into the outputs.
/// `start_token()`: the block's first token.
template <class Config, int kMe, class StartToken>
__device__ __forceinline__ void silence_block(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                              const sm90::Work& work, std::uint64_t live,
                                              std::uint64_t partial, int thread, const Parities& parities,
                                              StartToken start_token) {
  using Operand = typename Config::Operand;
  sm90::Tile* tiles = shared.kv[kMe].tiles;
  const auto row_of = [&](int i, int token) { return tiles[i].bytes + token * sm90::kRowBytes; };
  const auto record = [&] {
    const int start = start_token();
    const bool found = sm90::record_poison<Operand, Config::kVDim, 128>(
        shared.poisoned_rows, tiles, partial, thread, [&](int token) {
          const int length = work.segment.length;
          return Config::kSpans ? work.tile.rows_that_see(args, length, start + token)
                                : work.tile.rows_that_see_in_context(args.query, length, start + token);
        });
    if (found) shared.poisoned[parities[kMeeting]] = 1;
    ptx::named_sync(kAlone + kMe, 128);
  };
  if (partial != 0) record();
  sm90::silence_tokens<Operand, Config::kVChunks, 128>(row_of, live, partial, thread);
  ptx::fence_for_async_proxy();
  ptx::named_sync(kAlone + kMe, 128);
}

/// Puts what silence_block() found into warpgroup `me`'s half of the output. Not in silence_block(), since
/// the loop over blocks has no registers and no time for it (it took 14 % longer). `meet()`: synchronises
/// both warpgroups.
template <class Config, int kSums, class Meet>
__device__ __forceinline__ void spread_poison(SharedMemory<Config>& shared, float (&o)[kSums], int me,
                                              const sm90::Fragment& fragment, const Parities& parities,
                                              Meet meet) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int column = me * Config::kHalfDim + i / 4 * 8 + fragment.column + i % 2;
    if (shared.poisoned_rows[column].contains(fragment.row + i % 4 / 2 * 8)) o[i] = NAN;
  }
  meet();  // all threads have read it
  for (int i = threadIdx.x; i < Config::kVDim; i += Config::kComputeThreads) {
    shared.poisoned_rows[i].clear();
  }
  if (threadIdx.x == 0) shared.poisoned[parities[kMeeting]] = 0;
  meet();
}

}  // namespace flashlatent::mla_64_pingpong
