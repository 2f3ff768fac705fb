// Reads and checks the integers that operations on caches are given.
#pragma once

#include <cstdint>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent::cpu {

int threads_of(const Executor& executor);

/// Element number `offset` of an int32 or int64 tensor.
std::int64_t integer(const ConstTensorView& view, std::int64_t offset);

/// Is every slot negative or below `slots`, the cache's tokens?
Status validate_slots(const ConstTensorView& slot_mapping, std::int64_t slots);

/// Does cu_seqlens count `rows` rows, and is no first token negative?
Status validate_rows(const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                     std::int64_t rows);

}  // namespace flashlatent::cpu
