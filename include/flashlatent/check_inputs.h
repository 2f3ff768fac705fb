// Are a call's lengths and page numbers in range? decode() clamps lengths and skips pages that are not; these
// functions report them instead.
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
  kBlockTable,    ///< Entries whose tokens a query token can see: below the cache's pages. Negative ones are
                  ///< legal: their tokens are skipped.
  kExtraCacheSeqlens,  ///< The same of the extra cache.
  kExtraTopkLength,
  kExtraBlockTable,
};

/// The first value that is not accepted: that of the first argument (in InputArgument's order), then of the
/// lowest request, then of the lowest index. The layout in memory is the same on every backend.
struct InputOffence {
  InputArgument argument = InputArgument::kNone;
  std::int32_t request = 0;
  std::int32_t index = 0;  ///< Of a block table the column, of extra_cache_seqlens the query token (0 if each
                           ///< request has one length), else the place in the argument.
  std::int32_t value = 0;
  std::int64_t least = 0, most = 0;  ///< What is accepted there.
};

inline constexpr std::size_t kInputOffenceBytes = sizeof(InputOffence);
static_assert(kInputOffenceBytes == 32);

/// On the CPU. kInvalidArgument names the first offence's argument, request, index and value, and what is
/// accepted; also, as in decode(), a tensor that does not fit the problem. Reads cu_seqlens_q, cache_seqlens,
/// topk_length, block_table and what the extra cache has of these, and e4m3's scales, which must be positive
/// and finite; writes nothing. Does not look at sparse indices: those out of range are legal everywhere. A
/// CUDA executor is refused, since the call would have to wait for the device; use the next function there.
Status check_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, const Executor& executor);

/// On every backend: writes the first offence, or InputArgument::kNone, to `offence`, memory of the
/// executor's device of kInputOffenceBytes or more, aligned to 8 bytes. On CUDA this is one kernel launch,
/// without a copy or a wait: once the launch has run, copy the bytes and call to_status(). A CUDA graph can
/// capture it. Errors: kInvalidArgument (a tensor that does not fit the problem, by name; alignment),
/// kExhausted (`offence` is too small), kUnavailable, kInternal (the launch failed).
Status check_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, Memory offence,
                    const Executor& executor);

/// The Status that check_inputs() on the CPU returns for this offence.
Status to_status(const InputOffence& offence);

}  // namespace flashlatent
