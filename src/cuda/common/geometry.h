// What every decode kernel's schedule goes by.
#pragma once

#include "kernel/decode_kernel.h"

namespace flashlatent::cuda {

/// The most multiprocessors of a GPU, with some to spare: a GH200 has 132.
inline constexpr int kMostSms = 144;

/// Tokens that a page table has room for (sparse: topk), as far as the kernels count.
std::int32_t reach_of(const DecodeProblem& problem);

/// Rows of all partial results, and room for them: for a smaller batch, too, which may be split where this
/// one is not.
std::int64_t partial_rows(const schedule::Geometry& geometry);
std::size_t decode_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// What a plan knows of a request: with a window the last tokens alone, those that some query token sees and
/// what is left over in the first block.
std::int32_t tokens_in_window(const DecodeProblem& problem, int block_tokens);

}  // namespace flashlatent::cuda
