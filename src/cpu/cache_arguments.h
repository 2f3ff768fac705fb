// What operations on caches read of their arguments, and demand of the numbers in them.
#pragma once

#include <cstdint>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent::cpu {

int threads_of(const Executor& executor);

/// An element of an int32 or int64 tensor.
std::int64_t integer(const ConstTensorView& view, std::int64_t offset);

/// Every slot is one of the cache's `slots` tokens, or negative.
Status validate_slots(const ConstTensorView& slot_mapping, std::int64_t slots);

/// cu_seqlens counts `rows`; no first token is negative.
Status validate_rows(const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                     std::int64_t rows);

}  // namespace flashlatent::cpu
