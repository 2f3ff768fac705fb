// Another lse than -inf for empty rows, as some callers' conventions want.
#pragma once

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Replaces -inf in an lse, fp32 (batch, h_q, s_q) of any strides, that decode() wrote. On CUDA one launch on
/// the executor's stream.
Status replace_empty_lse(const TensorView& lse, float value, const Executor& executor);

}  // namespace flashlatent
