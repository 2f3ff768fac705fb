// Which edges of the layer kernels have in their own passes, as far as tensors say.
#pragma once

#include "flashlatent/decode.h"

namespace flashlatent::cuda {

/// Norm, and a rotation of the last 64 columns by neighbours, of a query that a kernel loads by 16 bytes;
/// `boxes`: by boxes.
bool fits_query_edge(const DecodeProblem& problem, const DecodeInputs& inputs, bool boxes);

/// The same rotation of outputs, and an FP8 output with scales for 128 columns.
bool fits_output_edge(const DecodeInputs& inputs, const DecodeOutputs& outputs);

/// Has the call edges? Those that its kernel leaves out are not in it (DecodeKernel::fuses).
bool has_edges(const DecodeInputs& inputs, const DecodeOutputs& outputs);

}  // namespace flashlatent::cuda
