// What a call writes has memory of its own. Kernels write rows in any order, on many threads, while others
// read.
#pragma once

#include <span>

#include "flashlatent/decode.h"
#include "flashlatent/sparse_prefill.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// A tensor of a call, by its name there.
struct NamedView {
  const char* name;
  const ConstTensorView* view;
};

/// Has each element bytes of its own? True where the strides, from the shortest on, each step over all that
/// lies within it. Such strides are all that a slice, a transposition or a contiguous tensor has.
bool elements_are_apart(const ConstTensorView& view);

/// kInvalidArgument if two elements of a written tensor share memory, or if a written tensor shares some with
/// another one (overlap()): the message names both. Up to eight tensors may be written.
Status expect_apart(std::span<const NamedView> written, std::span<const NamedView> read);

/// The same of a call's tensors and buffers.
Status expect_apart(const DecodeInputs& inputs, const DecodeOutputs& outputs, Memory plan, Memory workspace,
                    Device device);
Status expect_apart(const SparsePrefillInputs& inputs, const SparsePrefillOutputs& outputs, Memory workspace,
                    Device device);
/// The same for plan().
Status expect_apart(const PlanLengths& lengths, Memory plan, Device device);

}  // namespace flashlatent
