// Times of blocks that gqa_128 and gqa_128_split have in common.
#pragma once

#include "cost/model.h"
#include "flashlatent/problem.h"

namespace flashlatent::choose {

/// The time in which the loading warpgroup converts a block of e4m3 keys and values; 0 for other caches.
inline double time_to_convert(const DecodeProblem& problem, int block_tokens,
                              const schedule::Workers& workers) {
  using enum cost::Situation;
  constexpr cost::Kernel kKernel = cost::Kernel::kGqa128Split;
  if (problem.cache.format != KvFormat::kE4m3) return 0;
  const cost::Costs costs =
      problem.cache.qk_dim <= 64 ? cost::of(kKernel, kE4m3Dim64) : cost::of(kKernel, kE4m3Dim128);
  return costs.on(workers).per_block * (block_tokens / 64.0);
}

}  // namespace flashlatent::choose
