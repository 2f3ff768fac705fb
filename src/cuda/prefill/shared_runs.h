// Query rows of several requests against one run of tokens that they share (the prefix of a cascade): the
// prefill kernel without a causal mask, its results left as partial ones.
#pragma once

#include <cstdint>

#include "flashlatent/backend.h"
#include "flashlatent/decode.h"

namespace flashlatent::prefill {

/// Rows a tile: a run of m members has ceil(m * s_q * group / kTileRows) tiles a KV head.
inline constexpr int kTileRows = 128;

/// Tokens [0, tokens) of one request's page table row, which all members attend to. In device memory.
struct SharedRun {
  std::int32_t request;                   ///< Whose row of the page table.
  std::int32_t tokens;                    ///< 0: nothing is done.
  std::int32_t member_begin, member_end;  ///< Of SharedRuns::members.
};

/// All runs of a call. Members are in no two runs.
struct SharedRuns {
  const SharedRun* runs;        ///< On the device; read when the kernel runs.
  const std::int32_t* members;  ///< On the device: requests.
  int count;                    ///< Runs; those not needed have tokens = 0 or no members.
  int splits;                   ///< A run's blocks are cut in so many equal shares, 1 to 1,024.
};

/// Where results go: fp32, normalised, and their lse (natural; -inf where a share has no tokens, out is 0
/// then). Strides in floats; those of out are multiples of 2, as is its address of 8 bytes. Rows of requests
/// that are no members are not touched.
struct SharedPartials {
  float* out;  ///< (splits, batch, s_q, h_q, d).
  std::int64_t out_split_stride, out_request_stride, out_token_stride, out_head_stride;
  float* lse;
  std::int64_t lse_split_stride, lse_request_stride, lse_token_stride, lse_head_stride;
};

/// Can launch_shared_runs() take it? kUnsupported with a reason: it wants separate plain keys and values in
/// bf16 or fp16, qk_dim = v_dim, a multiple of 8 up to 256, pages of a multiple of 8 tokens, no ragged
/// queries, no soft_cap, ALiBi or window. `causal` is not looked at: the run ends before any query token.
Status takes_shared_runs(const DecodeProblem& problem);

/// One launch on executor.stream, which may overlap the one before it (it waits on the device). Grid: as many
/// tiles as `max_tiles` (of all runs together, of one KV head) times KV heads times splits; of tiles past
/// those that the runs have nothing is done. inputs: q, key_cache, value_cache, block_table are used.
/// kInvalidArgument: alignment, as decode() has it.
Status launch_shared_runs(const DecodeProblem& problem, const DecodeInputs& inputs, const SharedRuns& runs,
                          int max_tiles, const SharedPartials& partials, const Executor& executor);

/// Splits that fill `multiprocessors` once for runs of `tiles` row tiles in all (of one KV head), at most one
/// a block of `tokens`.
int splits_for(const DecodeProblem& problem, int tiles, std::int64_t tokens, int multiprocessors);

}  // namespace flashlatent::prefill
