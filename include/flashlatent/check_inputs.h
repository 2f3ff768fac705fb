// Do the integers of a call make sense? An option for callers who would rather have an error than the clamp
// and the skip that decode() does.
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
};

/// The first value that is not accepted: of the first argument that has one, the lowest request's, there the
/// lowest index. As it lies in memory on every backend.
struct InputOffence {
  InputArgument argument = InputArgument::kNone;
  std::int32_t request = 0;
  std::int32_t index = 0;  ///< Of block_table the column, else the place in the argument.
  std::int32_t value = 0;
  std::int64_t least = 0, most = 0;  ///< What is accepted there.
};

inline constexpr std::size_t kInputOffenceBytes = sizeof(InputOffence);
static_assert(kInputOffenceBytes == 32);

/// On the CPU: kInvalidArgument names the first offence's argument, request, index and value, and what is
/// accepted. It also refuses, as decode() does, tensors that do not fit the problem. Reads cu_seqlens_q,
/// cache_seqlens, topk_length and block_table, and writes nothing. Sparse indices are not looked at: those
/// out of range are legal everywhere. On CUDA it is refused, since it would have to wait; see the next one.
Status check_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, const Executor& executor);

/// On every backend: writes the first offence, or InputArgument::kNone, to `offence`, memory of the
/// executor's device of kInputOffenceBytes or more, aligned to 8 bytes. On CUDA one kernel launch, without a
/// copy or a wait: when the stream has come by, copy the bytes and ask to_status(). A CUDA graph can capture
/// it. Errors: kInvalidArgument (a tensor that does not fit the problem, by name; alignment), kExhausted
/// (`offence` is too small), kUnavailable, kInternal (the launch failed).
Status check_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, Memory offence,
                    const Executor& executor);

/// What the first check_inputs() returns of this offence.
Status to_status(const InputOffence& offence);

}  // namespace flashlatent
