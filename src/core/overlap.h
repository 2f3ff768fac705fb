// Do two views share memory?
#pragma once

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Do the views share a byte? Views of different devices do not. The answer is exact where the address ranges
/// are apart, and where both views step through memory by the same strides (layers of one tensor, keys beside
/// values, heads). Otherwise views whose address ranges meet count as overlapping.
bool overlap(const ConstTensorView& a, const ConstTensorView& b);

/// Is page i of one view page i of the other (same address and strides)? The numbers of pages may differ.
bool same_pages(const ConstTensorView& a, const ConstTensorView& b);

/// kInvalidArgument, with both names, if what is read and what is written overlap.
Status expect_apart(const char* read_name, const ConstTensorView& read, const char* written_name,
                    const ConstTensorView& written);

}  // namespace flashlatent
