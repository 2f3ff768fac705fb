// Checks the values of lengths and page numbers. decode() clamps lengths and skips pages that are out of
// range; these functions report them. A plan from Plan::with_check_inputs() calls them in its decode(); with
// the environment variable FLASHLATENT_CHECK_INPUTS=1 every decode() and sparse_prefill() of the process
// does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashlatent/backend.h"
#include "flashlatent/decode.h"
#include "flashlatent/problem.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// What is checked, in the order in which offences are reported.
enum class InputArgument : std::int32_t {
  kNone,          ///< No offence.
  kCuSeqlensQ,    ///< From 0 to q's total, never falling, at most s_q tokens a request.
  kCacheSeqlens,  ///< From 0 to max_pages * page_size.
  kTopkLength,    ///< From 0 to topk.
  /// Entries whose tokens a query token can see: less than the cache's pages. A negative entry is legal: its
  /// tokens are skipped.
  kBlockTable,
  kExtraCacheSeqlens,  ///< As kCacheSeqlens and so on, for the extra cache.
  kExtraTopkLength,
  kExtraBlockTable,
};

/// The first value that is not accepted, in the order of InputArgument, then of requests, then of indices.
/// The layout in memory is the same on every backend.
struct InputOffence {
  InputArgument argument = InputArgument::kNone;
  std::int32_t request = 0;
  /// Block table: the column. topk_length, extra_topk_length and extra_cache_seqlens: the query token (0 if
  /// each request has one length). Other arguments: the place in the argument.
  std::int32_t index = 0;
  std::int32_t value = 0;
  std::int64_t least = 0, most = 0;  ///< The range that is accepted there.
};

inline constexpr std::size_t kInputOffenceBytes = sizeof(InputOffence);
static_assert(kInputOffenceBytes == 32);

/// Checks on the CPU and returns kInvalidArgument for the first offence, with its argument, request, index
/// and value, and what is accepted. Reads cu_seqlens_q, cache_seqlens, topk_length, block_table, the same
/// tensors of the extra cache, and e4m3's scales, which must be positive and finite. Writes nothing. Sparse
/// indices are not checked: those out of range are legal and skipped. Other errors: kInvalidArgument as in
/// decode() for a tensor that does not fit the problem, kInvalidArgument for a CUDA executor, where the call
/// would have to wait for the device; use the next function there.
Status check_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, const Executor& executor);

/// Checks on any backend and writes the first offence, or InputArgument::kNone, to `offence`: memory of the
/// executor's device, kInputOffenceBytes or more, aligned to 8 bytes. On CUDA this is one kernel launch
/// without a copy or a wait, which a CUDA graph can capture. When the launch has run, copy the bytes and call
/// to_status(). Errors: kInvalidArgument (a tensor that does not fit the problem, by name; alignment),
/// kExhausted (`offence` is too small), kUnavailable, kInternal (the launch failed).
Status check_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, Memory offence,
                    const Executor& executor);

/// The Status that check_inputs() on the CPU returns for this offence.
Status to_status(const InputOffence& offence);

}  // namespace flashlatent
