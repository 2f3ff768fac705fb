// Lengths and sizes that every decode kernel's schedule needs.
#pragma once

#include "kernel/decode_kernel.h"

namespace flashlatent::cuda {

/// An upper bound of a GPU's multiprocessors: a GH200 has 132.
inline constexpr int kMostSms = 144;

/// The most tokens of a request: those of its page table (sparse: topk), within int32.
std::int32_t reach_of(const DecodeProblem& problem);

/// An upper bound of the rows of all partial results. It holds for smaller batches, too, which may be split
/// where this one is not.
std::int64_t partial_rows(const schedule::Geometry& geometry);
std::size_t decode_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// The geometry of a call with these tensors. Sparse requests without topk_length all have the same length.
/// If they also stay whole, part k is request k whatever the plan says, and the kernel need not wait for the
/// plan (1.5 us).
schedule::Geometry geometry_of_call(const DecodeProblem& problem, const DecodeInputs& inputs,
                                    const schedule::Geometry& planned);

/// The tokens of a request that the plan counts. With a window these are the last tokens: those that some
/// query token sees, and the rest of the block in which they begin.
std::int32_t tokens_in_window(const DecodeProblem& problem, int block_tokens);

}  // namespace flashlatent::cuda
