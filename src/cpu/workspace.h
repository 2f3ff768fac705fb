// The layout of the caller's workspace on the CPU, and the merge of partial results.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/block_math.h"
#include "cpu/kv_rows.h"
#include "kernel/decode_kernel.h"
#include "plan/plan_memory.h"
#include "plan/prefix.h"

namespace flashlatent::cpu {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The workspace: for each part a tile's state and a converted block, then partial results by their places,
/// then those of prefixes.
class Workspace {
 public:
  Workspace(const DecodeProblem& problem, const schedule::Geometry& g, Memory memory)
      : state_floats_(tile_floats(problem.cache.qk_dim, problem.cache.v_dim)),
        part_floats_(state_floats_ + scratch_floats(problem)),
        row_floats_(problem.cache.v_dim + 2),
        parts_(static_cast<float*>(memory.data)),
        partials_(parts_ + g.parts * part_floats_) {}

  static std::size_t bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
    const DecodeProblem::Cache& cache = problem.cache;
    const std::size_t part = tile_floats(cache.qk_dim, cache.v_dim) + scratch_floats(problem);
    return (g.parts * part + schedule::max_partials(g) * kTileRows * (cache.v_dim + 2)) * sizeof(float);
  }

  float* state(int part) const { return parts_ + part * part_floats_; }
  std::uint8_t* scratch(int part) const {
    return reinterpret_cast<std::uint8_t*>(state(part) + state_floats_);
  }
  /// A partial row of a shared prefix: v_dim values and the lse.
  static float* prefix_row(const DecodeCall& call, std::int64_t row) {
    const auto own = prefix::align(static_cast<std::int64_t>(bytes(call.problem, call.geometry)));
    return reinterpret_cast<float*>(static_cast<std::uint8_t*>(call.workspace.data) + own) +
           row * (call.problem.cache.v_dim + 1);
  }

  /// A partial row: v_dim values, the lse and the largest score.
  float* partial(int place, int row) const {
    return partials_ + (std::size_t{static_cast<unsigned>(place)} * kTileRows + row) * row_floats_;
  }

 private:
  static std::size_t scratch_floats(const DecodeProblem& problem) {
    return KvRows::scratch_bytes(problem.cache) / sizeof(float);
  }

  std::size_t state_floats_, part_floats_, row_floats_;
  float* parts_;
  float* partials_;
};

/// What a row's values must be multiplied with, and its lse. For an empty row: 0 and -inf.
struct RowScale {
  float factor, lse;
};
inline RowScale finish_row(float max, float sum) {
  if (sum == 0) return {0, -kInfinity};
  return {1 / sum, max + std::log(sum)};
}

/// Merges `rows` partial results into the row at `out`, in order. Result i is v_dim values and the lse at
/// `row_of(i)`. Before, the row's values times scale.factor are normalised; afterwards scale.factor is the
/// merged row's factor.
template <class RowOf>
void merge_rows(float* out, RowScale& scale, int rows, int v_dim, RowOf&& row_of) {
  float max = scale.lse;
  for (int i = 0; i < rows; ++i) max = std::max(max, row_of(i)[v_dim]);
  const float base = max == -kInfinity ? 0 : max;
  float sum = std::exp(scale.lse - base);
  for (int d = 0; d < v_dim; ++d) out[d] = sum == 0 ? 0 : sum * scale.factor * out[d];
  for (int i = 0; i < rows; ++i) {
    const float* row = row_of(i);
    const float weight = std::exp(row[v_dim] - base);
    sum += weight;
    for (int d = 0; d < v_dim && weight != 0; ++d) out[d] += weight * row[d];
  }
  scale = finish_row(base, sum);
}

}  // namespace flashlatent::cpu
