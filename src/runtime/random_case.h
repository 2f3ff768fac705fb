// Random decode problems with all kinds of difficult values, for `check` and for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "flashlatent/decode.h"
#include "runtime/case_spec.h"

namespace flashlatent::runtime {

/// A problem and its tensors on the CPU. Pages are in random order. The page table has more columns than
/// needed, with garbage in every entry past a request's pages. Unused pages, tails of last pages and gaps
/// between pages hold NaN and Inf; FP8 tokens have these in scales, too, and fp8_656 in the RoPE part if the
/// problem has none. Indices past topk_length name such tokens or none.
struct RandomCase {
  DecodeProblem problem;
  DecodeInputs inputs;
  /// Lengths of another step, in the place of lengths_of(): each up to the longest that any request has; up
  /// to its own where prefixes may be shared, since such a plan reads page tables. cu_seqlens_q is the
  /// call's.
  PlanLengths other_lengths = {};
  std::vector<std::vector<std::uint8_t>> storage;
};

/// Makes a case. The spec's problem must be valid.
RandomCase make_case(const CaseSpec& spec, std::uint64_t seed);

}  // namespace flashlatent::runtime
