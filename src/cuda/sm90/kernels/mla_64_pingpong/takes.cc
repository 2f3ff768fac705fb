#include "cuda/sm90/kernels/mla_64_pingpong/takes.h"

#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/latent_problem.h"
#include "plan/schedule.h"

namespace flashlatent::mla_64_pingpong {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading, int cluster, int team) {
  const auto& cache = problem.cache;
  return {cuda::cached_dtype(cache), cache.qk_dim, cache.v_dim, kTileRows, loading, cluster, team};
}

bool has_spans(const DecodeProblem& problem) {
  const auto& options = problem.options;
  return options.shard.world > 1 && options.causal && problem.query.tokens > 1;
}

cuda::InstanceKey share_key_of(const DecodeProblem& problem, const schedule::Geometry& g) {
  cuda::Loading loading = cuda::loading_of(problem);
  if (loading == cuda::Loading::kBoxes && has_spans(problem)) loading = cuda::Loading::kTokens;
  return key_of(problem, loading, loading == cuda::Loading::kFp8 ? 2 : cluster_of(problem, g, loading));
}

bool has_shares(const schedule::Geometry& g) {
  return schedule::combines_shares(g.partition);
}

bool has_listed_shares(const DecodeProblem& problem, const schedule::Geometry& g) {
  return cuda::goes_by_lists(problem) && cuda::has_rows_alike(problem) &&
         cuda::is_listed({kRopeRecordShareKeys, kRecordsShareKeys, kListedShareKeys},
                         share_key_of(problem, g));
}

bool has_items_in_turn(const DecodeProblem& problem, const schedule::Geometry& g) {
  return (g.partition == schedule::Partition::kWhole || g.partition == schedule::Partition::kTurns) &&
         has_listed_shares(problem, g);
}

int cluster_of(const DecodeProblem& problem, const schedule::Geometry& g, cuda::Loading loading) {
  if (loading != cuda::Loading::kFp8 && loading != cuda::Loading::kRopeRecords &&
      loading != cuda::Loading::kRecords)
    return 1;
  const int row_tiles = (cuda::rows_of_item(problem) + g.tile_rows - 1) / g.tile_rows;
  return g.lanes % 2 == 0 && row_tiles % 2 == 0 && !problem.query.ragged ? 2 : 1;
}

cuda::InstanceKey turns_key_of(const DecodeProblem& problem, const schedule::Geometry& g) {
  const cuda::Loading loading = cuda::loading_of(problem);
  // In a cluster fp8_656 is in units of tokens, whose bases are not maxima of scores (warpgroup.cuh).
  const int cluster = loading == cuda::Loading::kFp8 ? 1 : cluster_of(problem, g, loading);
  cuda::InstanceKey key = key_of(problem, loading, cluster);
  key.turns = true;
  return key;
}

}  // namespace flashlatent::mla_64_pingpong

namespace flashlatent::cuda {

namespace {

/// Why no loader reads the cache; nothing if one does.
std::optional<std::string> declines_cache(const DecodeProblem& problem) {
  if (!goes_by_lists(problem)) {
    return declines_tokens(problem, {KvFormat::kPlain}, kOneListFormats);
  }
  return declines_lists(problem, {KvFormat::kPlain}, kByteFormats);
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_cache(problem)) return reason;
  if (auto reason = declines_e4m3_products(problem)) return reason;
  if (goes_by_lists(problem)) {
    const InstanceKey key = mla_64_pingpong::key_of(problem, loading_of(problem), 1);
    if (is_listed({mla_64_pingpong::kRopeRecordKeys, mla_64_pingpong::kRecordsKeys,
                   mla_64_pingpong::kE4m3Keys, mla_64_pingpong::kListedKeys},
                  key))
      return std::nullopt;
    return unknown_dimensions(problem, "with an extra cache or a window 512/512 is");
  }
  const InstanceKey key = mla_64_pingpong::key_of(problem, loading_of(problem), 1);
  if (is_listed({mla_64_pingpong::kKeys576x512, mla_64_pingpong::kKeys512x512, mla_64_pingpong::kKeys320x256,
                 mla_64_pingpong::kFp8Keys, mla_64_pingpong::kE4m3Keys},
                key))
    return std::nullopt;
  return unknown_dimensions(problem);
}

std::optional<std::string> declines_turns(const DecodeProblem& problem, bool /*max_logits*/) {
  if (auto reason = declines_cache(problem)) return reason;
  if (auto reason = declines_e4m3_products(problem)) return reason;
  const InstanceKey key = mla_64_pingpong::turns_key_of(problem, schedule::Geometry{});
  if (is_listed({mla_64_pingpong::kTurnsKeys, mla_64_pingpong::kTurnsFp8Keys,
                 mla_64_pingpong::kTurnsListedKeys, mla_64_pingpong::kTurnsListed576Keys,
                 mla_64_pingpong::kTurnsE4m3Keys, mla_64_pingpong::kTurnsRecordsKeys},
                key))
    return std::nullopt;
  const bool plain = problem.cache.format == KvFormat::kPlain;
  return unknown_dimensions(problem, goes_by_lists(problem) && !plain ? "with an extra cache 512/512 is"
                                                                      : "576/512 and 512/512 are");
}

}  // namespace

const DecodeKernel kMla64PingpongKernel = {
    .name = "mla_64_pingpong",
    .architecture = Architecture::kSm90a,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, and all others; dense and "
        "sparse, any heads, tokens and page size; extra caches and windows of 512/512",
    .declines = declines,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_64_pingpong::launch),
    .declines_turns = declines_turns,
    .leaves = true,
};

}  // namespace flashlatent::cuda
