// What a call demands of one tensor.
#pragma once

#include <vector>

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Is `view` there, of this dtype, shape (-1 accepts any extent) and device, at an address aligned to its
/// dtype? kInvalidArgument names it, what it is and what is expected.
Status expect(const char* name, const ConstTensorView& view, Dtype dtype, Device device,
              const std::vector<std::int64_t>& shape);

Status innermost_contiguous(const char* name, const ConstTensorView& view);

/// Both.
Status expect_strided(const char* name, const ConstTensorView& view, Dtype dtype, Device device,
                      const std::vector<std::int64_t>& shape);

/// The same of int32 or int64.
Status expect_integers(const char* name, const ConstTensorView& view, Device device,
                       const std::vector<std::int64_t>& shape);

}  // namespace flashlatent
