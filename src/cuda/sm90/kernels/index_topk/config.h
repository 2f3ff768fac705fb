// Sizes of index_topk() on CUDA: plain C++, for host and device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/index_call.h"

namespace flashlatent::cuda::indexer {

/// Keys of a stage, 64 for each of two warpgroups.
inline constexpr int kTile = 128;
inline constexpr int kWarpgroups = 2, kConsumers = kWarpgroups * 128, kThreads = kConsumers + 32;
/// Query tokens that a CTA holds, which share a request's keys.
inline constexpr int kMostGroupRows = 6;
/// Two CTAs of a multiprocessor share its 227 KB, of which each has 1 KB for itself.
inline constexpr int kMostShared = 112 * 1024;
/// Together 96 KB of keys are on their way to a multiprocessor.
FLASHLATENT_HOST_DEVICE constexpr int stages_of(IndexFormat format) {
  return format == IndexFormat::kFp8_132 ? 3 : 6;
}
inline constexpr int kMostStages = 6;

/// Scores of all places of these query tokens are in the workspace at a time.
inline constexpr std::int64_t kMostScoreBytes = 128LL << 20;

/// Keys that follow one another in a page wherever requests end, a copy each; 0: keys may lie apart.
FLASHLATENT_HOST_DEVICE int keys_of_run(const IndexCall& call) {
  const bool blocks = call.candidates > 0;
  if (!blocks && call.page_size % 32 == 0) return 32;
  return call.page_size % 8 == 0 && (!blocks || call.candidate_block % 8 == 0) ? 8 : 0;
}

/// The shape of a CTA's work.
struct Shape {
  int head_columns = 64;  ///< Heads of a product: 32 or 64; missing ones have weight 0.
  int head_chunks = 1;    ///< Products for all heads.
  int group_rows = 1;     ///< Query tokens that a CTA holds.

  FLASHLATENT_HOST_DEVICE int heads() const { return head_columns * head_chunks; }
};

inline Shape shape_of(const IndexCall& call) {
  Shape shape;
  shape.head_columns = call.heads <= 32 ? 32 : 64;
  shape.head_chunks = (call.heads - 1) / shape.head_columns + 1;
  // Query tokens with their own candidates have their own keys.
  const int most = shape.heads() > 64 ? kMostGroupRows / 2 : kMostGroupRows;
  shape.group_rows = call.candidates > 0 ? 1 : std::min(most, std::max(1, call.tokens));
  return shape;
}

/// A group: up to group_rows consecutive query tokens of one request. Ragged, group i of a request has the
/// number cu_seqlens_q / group_rows + request + i; not all numbers are groups.
inline std::int64_t groups_of(const IndexCall& call, const Shape& shape) {
  if (call.ragged) return call.rows() / shape.group_rows + call.batch;
  return std::int64_t{call.batch} * ((call.tokens - 1) / shape.group_rows + 1);
}

/// From the scores of one query token to those of the next.
inline std::int64_t score_stride(const IndexCall& call) {
  return std::max<std::int64_t>((std::int64_t{call.span} + kTile - 1) / kTile * kTile, kTile);
}

/// Query tokens whose scores are in the workspace at a time.
inline std::int64_t wave_rows(const IndexCall& call) {
  const std::int64_t fit = kMostScoreBytes / (score_stride(call) * 4) / kMostGroupRows * kMostGroupRows;
  return std::min(call.rows(), std::max<std::int64_t>(fit, kMostGroupRows));
}

/// Keys of which a CTA that chooses keeps the upper halves in shared memory.
inline constexpr int kHeldKeys = 32 * 1024;
/// CTAs of a cluster that choose for one query token.
inline constexpr int kMostSelectTeam = 8;
/// Where CTAs are idle, each takes so many keys of a query token at least: they also wait for one another.
inline constexpr int kLeastOfSelectTeam = 8 * 1024;

/// CTAs that choose for a query token, two of them on a multiprocessor.
inline int select_team(const IndexCall& call, int rows, int processors) {
  int team = 1;
  const auto doubles = [&] {
    const bool idle = 2 * std::int64_t{rows} * team <= 2 * std::int64_t{processors};
    return call.span > team * kHeldKeys || (idle && call.span > team * kLeastOfSelectTeam);
  };
  while (team < kMostSelectTeam && doubles()) team *= 2;
  return team;
}

}  // namespace flashlatent::cuda::indexer
