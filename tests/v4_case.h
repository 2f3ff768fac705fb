// DeepSeek V4's layer as a case: two caches by indices, a sink, and the edges.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/random_case.h"

namespace flashlatent {

/// Norm and rotation, inverse rotation and cast.
inline constexpr runtime::EdgeSpec kV4 = {
    .norm = 1e-6F, .q_columns = 64, .out_columns = 64, .fp8_columns = 128};

inline runtime::CaseSpec v4_case(int heads, std::vector<int> lengths, int extra_tokens, int extra_topk) {
  const std::size_t requests = lengths.size();
  return {.name = "v4",
          .format = KvFormat::kFp8_584,
          .heads = heads,
          .qk_dim = 512,
          .lengths = std::move(lengths),
          .sink = true,
          .sparse = true,
          .topk = 128,
          .skipped_indices = 0.2,
          .extra_lengths = std::vector<int>(requests, extra_tokens),
          .extra_indexed = true,
          .extra_topk = extra_topk,
          .edges = kV4};
}

}  // namespace flashlatent
