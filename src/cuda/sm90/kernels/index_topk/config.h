// Sizes of index_topk() on CUDA: plain C++, for host and device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/index_call.h"

namespace flashlatent::cuda::indexer {

/// A CTA that scores: warpgroups that each multiply 64 keys of a stage's, and a warp that loads. With one
/// product a tile of keys memory binds, and two small CTAs a multiprocessor share out little work evenly.
/// With more products a warpgroup's own time binds: four warpgroups of one CTA share more query tokens, and a
/// warp's registers hold two products at a time.
template <int kWarpgroupCount>
struct ScoreConfig {
  static constexpr int kWarpgroups = kWarpgroupCount, kConsumers = kWarpgroups * 128;
  static constexpr int kTile = kWarpgroups * 64;  ///< Keys of a stage.
  static constexpr bool kPairs = kWarpgroups == 4;
  static constexpr int kLoaders = kPairs ? 128 : 32;  ///< setmaxnreg is for whole warpgroups.
  static constexpr int kThreads = kConsumers + kLoaders;
  static constexpr int kCtas = kPairs ? 1 : 2;  ///< Of a multiprocessor.
  /// A launch gives 96 to each thread: a multiple of 8, and five warps share the 16,384 of a quarter. What
  /// loaders give back is all that scorers can take.
  static constexpr int kScorerRegisters = 112, kLoaderRegisters = 32;
  static_assert(!kPairs || kConsumers * kScorerRegisters + kLoaders * kLoaderRegisters <= kThreads * 96);
  static constexpr int kMostGroupRows = kPairs ? 12 : 1;  ///< Query tokens that share a request's keys.
  /// Of a ring: 96 KB of keys are on their way to a multiprocessor.
  FLASHLATENT_HOST_DEVICE static constexpr int stages(IndexFormat format) {
    return kPairs ? (format == IndexFormat::kFp8_132 ? 3 : 6) : 3;
  }
  static constexpr int kMostStages = stages(IndexFormat::kMxfp4_68);
  /// A multiprocessor has 227 KB; two CTAs share it, each with 1 KB for itself.
  static constexpr int kMostShared = kPairs ? 227 * 1024 : 112 * 1024;
};
inline constexpr int kMostTile = ScoreConfig<4>::kTile, kMostGroupRows = ScoreConfig<4>::kMostGroupRows;

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
  int warpgroups = 2;     ///< 2 or 4: which ScoreConfig.

  FLASHLATENT_HOST_DEVICE constexpr int heads() const { return head_columns * head_chunks; }
};

inline Shape shape_of(const IndexCall& call) {
  Shape shape;
  shape.head_columns = call.heads <= 32 ? 32 : 64;
  shape.head_chunks = (call.heads - 1) / shape.head_columns + 1;
  const int each = call.ragged ? (call.tokens - 1) / std::max(1, call.batch) + 1 : call.tokens;
  const bool many = call.candidates == 0 && each > ScoreConfig<2>::kMostGroupRows;
  shape.warpgroups = many || call.format == IndexFormat::kMxfp4_68 ? 4 : 2;
  if (call.candidates > 0) return shape;  // query tokens with their own candidates have their own keys
  const int held = shape.warpgroups == 4 ? ScoreConfig<4>::kMostGroupRows : ScoreConfig<2>::kMostGroupRows;
  shape.group_rows = std::min(std::max(1, shape.heads() > 64 ? held / 2 : held), std::max(1, each));
  return shape;
}

/// A group: up to group_rows consecutive query tokens of one request. Ragged, group i of a request has the
/// number cu_seqlens_q / group_rows + request + i; not all numbers are groups.
inline int groups_of_request(const IndexCall& call, const Shape& shape) {
  return (call.tokens - 1) / shape.group_rows + 1;
}
inline std::int64_t groups_of(const IndexCall& call, const Shape& shape) {
  if (call.ragged) return call.rows() / shape.group_rows + call.batch;
  return std::int64_t{call.batch} * groups_of_request(call, shape);
}

/// From the scores of one query token to those of the next.
inline std::int64_t score_stride(const IndexCall& call) {
  return std::max<std::int64_t>((std::int64_t{call.span} + kMostTile - 1) / kMostTile * kMostTile, kMostTile);
}

/// Query tokens whose scores are in the workspace at a time.
inline std::int64_t wave_rows(const IndexCall& call) {
  const std::int64_t fit = std::max<std::int64_t>(kMostScoreBytes / (score_stride(call) * 4), kMostGroupRows);
  const std::int64_t waves = std::max<std::int64_t>((call.rows() + fit - 1) / fit, 1);
  return (call.rows() + waves - 1) / waves;
}

/// Threads of a CTA that chooses: as many as score in a CTA that does both. With more, fewer keys are left
/// for each, and what is done once a thread takes longer.
inline constexpr int kChooseThreads = ScoreConfig<4>::kConsumers, kChooseWarps = kChooseThreads / 32;
/// A CTA that chooses for a query token. Each has a multiprocessor for itself if there are enough; of more
/// query tokens two share one, so that one works while the other waits.
template <int kCtaCount>
struct SelectConfig {
  static constexpr int kCtas = kCtaCount;
  static constexpr int kHeldKeys = (kCtas == 1 ? 48 : 16) * 1024;  ///< That shared memory holds.
};
/// CTAs of a cluster that choose for one query token, if multiprocessors are idle. With less than so many
/// keys for each, adding up their counts takes longer than one CTA.
inline constexpr int kMostSelectTeam = 8, kLeastOfSelectTeam = 4 * 1024, kLeastOfTeams = 16 * 1024;

/// CTAs that choose for a query token.
inline int select_team(const IndexCall& call, int processors) {
  const std::int64_t rows = wave_rows(call);
  int team = 1;
  if (call.best_blocks > 0 || call.span <= kLeastOfTeams) return team;
  while (team < kMostSelectTeam && 2 * rows * team <= processors &&
         call.span >= 2 * team * kLeastOfSelectTeam) {
    team *= 2;
  }
  return team;
}

/// Few query tokens of short contexts: one launch, in which a cluster scores a query token's keys and its
/// first CTA chooses. A second launch costs about as much as scoring 1,024 keys more in each CTA.
inline constexpr int kMostKeysOfTeam = 1024, kMostScoreTeam = 8;
/// CTAs of such a cluster, alone on their multiprocessors; 0: two launches.
inline int score_team(const IndexCall& call, int processors) {
  if (call.rows() == 0 || call.heads <= 32 || call.span > kMostScoreTeam * kMostKeysOfTeam) return 0;
  int team = 2;
  while (team < kMostScoreTeam && call.span > team * ScoreConfig<4>::kTile) team *= 2;
  // Clusters do not fill all multiprocessors.
  return call.rows() * team <= processors - processors / 8 ? team : 0;
}

}  // namespace flashlatent::cuda::indexer
