// What the layers of a step read besides their caches: positions, slots of new tokens, lengths and indices of
// compressed caches and windows. One launch makes it for all layers, from lengths and page tables in memory
// of the device, so that a CUDA graph captures it and follows the lengths at each replay.
#pragma once

#include <cstdint>
#include <span>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// The query tokens of a step, which are the last ones of their requests. A row is a query token, in the
/// order of q. Rows without a query token, of requests with fewer cached tokens than query tokens and of
/// ragged padding, have position 0, length 0, and slots and indices of -1.
struct StepQuery {
  ConstTensorView cache_seqlens;  ///< int32 (batch): cached tokens, the query tokens' own included.
  std::int64_t tokens = 1;        ///< Query tokens a request, s_q; ragged: rows in all.
  /// int32 (batch + 1), only ragged: request i has the rows [cu_seqlens_q[i], cu_seqlens_q[i + 1]). From 0,
  /// never falling, to at most the rows; anything else is refused on the CPU and not noticed on CUDA.
  ConstTensorView cu_seqlens_q;
};

/// A cache of the step. Its token c stands for the context's tokens [c * ratio, (c + 1) * ratio); ratio is 1,
/// or that of a compressed cache. A query token at position p sees its first floor((p + 1) / ratio) tokens.
/// Outputs are optional.
struct StepCache {
  ConstTensorView block_table;  ///< int32 (batch, max_pages). A negative page has no slots.
  std::int64_t page_size = 64;
  int ratio = 1;
  /// int32 or int64 (rows): the slot of the cache's token that ends with the query token if (p + 1) % ratio
  /// is 0, else -1.
  TensorView slots;
  TensorView lengths;          ///< int32 (rows): how many tokens the query token sees.
  TensorView request_lengths;  ///< int32 (batch): floor(cache_seqlens / ratio).
  /// int32 (rows, n): the slots of the newest n tokens that the query token sees, in their order, then -1. A
  /// slot of 2^31 or more, which no index can name, is -1.
  TensorView indices;
};

inline constexpr int kMostStepCaches = 8;

/// Makes the outputs of up to kMostStepCaches caches, and `positions`, int32 (rows), if that is present.
/// Tokens beyond a page table have no slots. Errors: kInvalidArgument (a tensor that does not fit, by name;
/// outputs that overlap each other or inputs), kUnavailable, kInternal (the launch failed).
Status prepare_step(const StepQuery& query, std::span<const StepCache> caches, const TensorView& positions,
                    const Executor& executor);

}  // namespace flashlatent
