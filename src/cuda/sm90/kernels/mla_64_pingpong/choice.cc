#include "cuda/sm90/kernels/mla_64_pingpong/choice.h"

#include <algorithm>

#include "cost/model.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/dense_choice.h"
#include "cuda/host/dense_times.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/teams.h"
#include "plan/even_shares.h"
#include "plan/host_plan.h"

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
         cuda::is_listed({kFp8_584ShareKeys, kRecordsShareKeys, kListedShareKeys}, share_key_of(problem, g));
}

bool has_items_in_turn(const DecodeProblem& problem, const schedule::Geometry& g) {
  return (g.partition == schedule::Partition::kWhole || g.partition == schedule::Partition::kTurns) &&
         has_listed_shares(problem, g);
}

int cluster_of(const DecodeProblem& problem, const schedule::Geometry& g, cuda::Loading loading) {
  if (loading != cuda::Loading::kFp8 && loading != cuda::Loading::kFp8_584 &&
      loading != cuda::Loading::kRecords)
    return 1;
  const int row_tiles = (cuda::rows_of_item(problem) + g.tile_rows - 1) / g.tile_rows;
  return g.lanes % 2 == 0 && row_tiles % 2 == 0 && !problem.query.ragged ? 2 : 1;
}

cuda::InstanceKey turns_key_of(const DecodeProblem& problem, const schedule::Geometry& g) {
  const cuda::Loading loading = cuda::loading_of(problem);
  // In a cluster fp8_656 is in units of tokens, whose bases are not their scores' (warpgroup.cuh).
  const int cluster = loading == cuda::Loading::kFp8 ? 1 : cluster_of(problem, g, loading);
  cuda::InstanceKey key = key_of(problem, loading, cluster);
  key.turns = true;
  return key;
}

}  // namespace flashlatent::mla_64_pingpong

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;

constexpr DenseShape kShape = {.tile_rows = mla_64_pingpong::kTileRows,
                               .cost = cost::of(Kernel::kMla64Pingpong, Situation::kRows64)};
constexpr DenseShape kShapeOfTiles = {.tile_rows = mla_64_pingpong::kTileRows,
                                      .cost = cost::of(Kernel::kMla64Pingpong, Situation::kTiles)};
constexpr DenseShape kShapeFp8_584 = {.tile_rows = mla_64_pingpong::kTileRows,
                                      .cost = cost::of(Kernel::kMla64Pingpong, Situation::kFp8_584)};
constexpr DenseShape kShapeFp8_584OfTiles = {
    .tile_rows = mla_64_pingpong::kTileRows,
    .cost = cost::of(Kernel::kMla64Pingpong, Situation::kFp8_584Tiles)};
constexpr DenseShape kShapeOfListedShares = {
    .tile_rows = mla_64_pingpong::kTileRows,
    .cost = cost::of(Kernel::kMla64Pingpong, Situation::kListedShares)};
constexpr DenseShape kShapeOfListedSharesOfTiles = {
    .tile_rows = mla_64_pingpong::kTileRows,
    .cost = cost::of(Kernel::kMla64Pingpong, Situation::kListedSharesOfTiles)};
constexpr DenseShape kShapeFp8 = {.tile_rows = mla_64_pingpong::kTileRows,
                                  .cost = cost::of(Kernel::kMla64Pingpong, Situation::kFp8)};

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (goes_by_lists(problem)) {
    if (auto reason = declines_lists(
            problem, {KvFormat::kPlain, KvFormat::kFp8_656, KvFormat::kFp8_584, KvFormat::kE4m3,
                      KvFormat::kMxfp8_528, KvFormat::kNvfp4_288, KvFormat::kFp8_528})) {
      return reason;
    }
    if (auto reason = declines_e4m3_products(problem)) return reason;
    const InstanceKey key = mla_64_pingpong::key_of(problem, loading_of(problem), 1);
    if (is_listed({mla_64_pingpong::kFp8_584Keys, mla_64_pingpong::kRecordsKeys, mla_64_pingpong::kE4m3Keys,
                   mla_64_pingpong::kListedKeys},
                  key))
      return std::nullopt;
    return unknown_dimensions(problem, "with an extra cache or a window 512/512 is");
  }
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain, KvFormat::kFp8_656, KvFormat::kE4m3})) {
    return reason;
  }
  if (auto reason = declines_e4m3_products(problem)) return reason;
  const InstanceKey key = mla_64_pingpong::key_of(problem, loading_of(problem), 1);
  if (is_listed({mla_64_pingpong::kKeys576x512, mla_64_pingpong::kKeys512x512, mla_64_pingpong::kKeys320x256,
                 mla_64_pingpong::kFp8Keys, mla_64_pingpong::kE4m3Keys},
                key))
    return std::nullopt;
  return unknown_dimensions(problem);
}

bool fits_one_tile(const DecodeProblem& problem) {
  return problem.rows_per_kv_head() <= mla_64_pingpong::kTileRows;
}

constexpr cost::Costs kTeamCost = cost::of(Kernel::kMla64Pingpong, Situation::kTeams);
constexpr cost::Costs kTeamCostOfTwoTiles = cost::of(Kernel::kMla64Pingpong, Situation::kTeamsOfTiles);
/// With more blocks a CTA, requests of varied lengths lose a quarter where equal ones gain a twentieth.
constexpr int kMostTeamBlocks = 8;
/// SMs that are left over, since clusters lie within GPCs.
constexpr int kUnusedSms = 12;

/// A team of so many CTAs for each request and row tile, where there is room for all of them at once: no plan
/// to read, no workspace, no combine step.
std::optional<schedule::Geometry> team_geometry(const DecodeProblem& problem,
                                                const schedule::Workers& workers, int team) {
  const int teams = within_room(std::max(workers - kUnusedSms, 0) / team, team, workers);
  if (teams == 0 || loading_of(problem) != Loading::kBoxes || mla_64_pingpong::has_spans(problem) ||
      !is_listed({mla_64_pingpong::kTeamKeys576x512},
                 mla_64_pingpong::key_of(problem, Loading::kBoxes, 1, team)))
    return std::nullopt;
  const bool one_tile = fits_one_tile(problem);
  schedule::Geometry g = split_geometry(problem, workers.some(teams * team),
                                        {.tile_rows = mla_64_pingpong::kTileRows,
                                         .cost = one_tile ? kTeamCost : kTeamCostOfTwoTiles,
                                         .team = team});
  if (schedule::max_blocks(g) > kMostTeamBlocks * team) return std::nullopt;
  g.lanes *= g.rounds;
  g.rounds = 1;
  g.parts = teams / g.lanes;
  g.cost = cost::by_team(g.cost, team);
  return schedule::whole_items(g);
}

constexpr cost::Costs kEvenCost = cost::of(Kernel::kMla64Pingpong, Situation::kShares);
constexpr cost::Costs kEvenCostOfTwoTiles = cost::of(Kernel::kMla64Pingpong, Situation::kSharesOfTiles);
constexpr int kFewRows = 16;

/// Up to so many blocks a CTA, several requests are fastest with equally many parts each, even where they
/// differ in length. Where they do not, that takes 0.4 us less, since nobody reads the plan.
constexpr int kFewBlocks = 2;
/// With more than so many a line shares out varied lengths better, where others' segments cost its CTAs less:
/// two tiles find blocks in L2.
constexpr int kManyBlocksOfTwoTiles = 8;

/// Shares of one request each, so that a CTA has one segment, and a combine step; where few blocks are to be
/// shared out. Sparse requests have mostly as many tokens as each other.
std::optional<schedule::Geometry> shares_of_requests(const DecodeProblem& problem, schedule::Geometry g,
                                                     const schedule::Workers& workers) {
  const std::optional<schedule::Geometry> even = schedule::even_items(g);
  if (!even) return std::nullopt;
  const auto has_up_to = [&](int blocks) {
    return schedule::max_blocks(g) <= blocks * schedule::even_shares(*even);
  };
  if (problem.sparse.enabled || g.requests == 1 || has_up_to(kFewBlocks)) return even;
  if (!fits_one_tile(problem) && !has_up_to(kManyBlocksOfTwoTiles)) return std::nullopt;
  cost::add(g.cost, cost::of(Kernel::kLatent, Situation::kReadsPlan).on(workers));
  return schedule::items_by_length(g);
}

/// The same from a bf16 or fp16 cache, where a CTA has a share alone. `line` is how CTAs share out the
/// requests otherwise.
std::optional<schedule::Geometry> even_geometry(const DecodeProblem& problem,
                                                const schedule::Workers& workers,
                                                const schedule::Geometry& line) {
  // Where CTAs never split, a workspace for larger batches may have no room for partial results.
  if (line.partition != schedule::Partition::kLine || line.lanes > 2 ||
      !is_listed({mla_64_pingpong::kShareKeys576x512, mla_64_pingpong::kFp8ShareKeys},
                 mla_64_pingpong::share_key_of(problem, line)))
    return std::nullopt;
  schedule::Geometry split =
      split_geometry(problem, workers, {.tile_rows = mla_64_pingpong::kTileRows, .cost = {}});
  split.cost = (fits_one_tile(problem) ? kEvenCost : kEvenCostOfTwoTiles).on(workers);
  if (problem.cache.dtype == Dtype::kF16) {
    cost::add(split.cost, cost::of(Kernel::kLatent, Situation::kPartials32).on(workers));
  }
  if (problem.rows_per_kv_head() <= kFewRows) {
    cost::add(split.cost, cost::of(Kernel::kMla64Pingpong, Situation::kFewRows).on(workers));
  }
  return shares_of_requests(problem, split, workers);
}

/// By clusters of two.
schedule::Geometry fp8_geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const schedule::Geometry g = dense_geometry(problem, workers, kShapeFp8);
  if (mla_64_pingpong::cluster_of(problem, g, Loading::kFp8) == 1) return g;
  const std::optional<schedule::Geometry> shares = shares_of_requests(problem, g, workers);
  return shares && schedule::estimate(*shares) <= schedule::estimate(g) ? *shares : g;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  if (goes_by_lists(problem)) {
    const bool one_tile = rows_of_item(problem) <= mla_64_pingpong::kTileRows;
    const schedule::Geometry g =
        dense_geometry(problem, workers, one_tile ? kShapeFp8_584 : kShapeFp8_584OfTiles);
    if (!mla_64_pingpong::has_listed_shares(problem, g)) return g;
    return in_turn_if_faster(
        problem,
        listed_geometry(problem, workers, one_tile ? kShapeOfListedShares : kShapeOfListedSharesOfTiles, g));
  }
  if (problem.cache.format == KvFormat::kFp8_656) return fp8_geometry(problem, workers);
  if (problem.cache.format == KvFormat::kE4m3) return dense_geometry(problem, workers, kShapeFp8);
  schedule::Geometry best = dense_geometry(problem, workers, fits_one_tile(problem) ? kShape : kShapeOfTiles);
  if (schedule::cuts_line(best.partition) && best.requests == 1 && best.lanes == 2) {
    cost::add(best.cost, cost::of(Kernel::kMla64Pingpong, Situation::kLoneRequest).on(workers));
  }
  const std::optional<schedule::Geometry> shares = even_geometry(problem, workers, best);
  const auto take_faster = [&](const std::optional<schedule::Geometry>& g) {
    if (g && schedule::estimate(*g) < schedule::estimate(best)) best = *g;
  };
  for (int team : {8, 4, 2}) take_faster(team_geometry(problem, workers, team));
  take_faster(shares);
  return best;
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  constexpr cost::Costs kTimes = cost::of(Kernel::kMla64Pingpong, Situation::kTimes);
  constexpr cost::Costs kTimesOfTiles = cost::of(Kernel::kMla64Pingpong, Situation::kTimesOfTiles);
  constexpr cost::Costs kQueryTokens = cost::of(Kernel::kMla64Pingpong, Situation::kQueryTokens);
  constexpr cost::Costs kTeamQueryTokens = cost::of(Kernel::kMla64Pingpong, Situation::kTeamQueryTokens);
  const bool one_tile = fits_one_tile(problem);
  if (g.team > 1) return with_query_tokens(cost::of_shares(g), problem, kTeamQueryTokens, workers);
  const schedule::CallTimes times =
      schedule::combines_shares(g.partition)
          ? share_times(g, workers, one_tile ? kEvenCost : kEvenCostOfTwoTiles)
          : dense_times(g, workers, {.costs = one_tile ? kTimes : kTimesOfTiles});
  return with_query_tokens(times, problem, kQueryTokens, workers);
}

schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool one_tile = rows_of_item(problem) <= mla_64_pingpong::kTileRows;
  const auto cost = [&] {
    switch (loading_of(problem)) {
      case Loading::kFp8:
      case Loading::kListedFp8:
        return cost::of(Kernel::kMla64Pingpong, Situation::kTurnsFp8);
      case Loading::kFp8_584:
      case Loading::kRecords:
        return one_tile ? cost::of(Kernel::kMla64Pingpong, Situation::kFp8_584Turns)
                        : cost::of(Kernel::kMla64Pingpong, Situation::kFp8_584TurnsOfTiles);
      case Loading::kBoxes:
      case Loading::kTokens:
      case Loading::kListedTokens:
        break;
    }
    return one_tile ? cost::of(Kernel::kMla64Pingpong, Situation::kTurns)
                    : cost::of(Kernel::kMla64Pingpong, Situation::kTurnsOfTiles);
  };
  return turns_geometry(problem, workers, {.tile_rows = mla_64_pingpong::kTileRows, .cost = cost()});
}

std::optional<std::string> declines_turns(const DecodeProblem& problem) {
  const bool by_lists = goes_by_lists(problem);
  const std::initializer_list<KvFormat> formats = {
      KvFormat::kPlain,     KvFormat::kFp8_656,   KvFormat::kFp8_584, KvFormat::kE4m3,
      KvFormat::kMxfp8_528, KvFormat::kNvfp4_288, KvFormat::kFp8_528};
  if (auto reason = (by_lists ? declines_lists : declines_tokens)(problem, formats)) return reason;
  const InstanceKey key = mla_64_pingpong::turns_key_of(problem, schedule::Geometry{});
  if (is_listed({mla_64_pingpong::kTurnsKeys, mla_64_pingpong::kTurnsFp8Keys,
                 mla_64_pingpong::kTurnsListedKeys, mla_64_pingpong::kTurnsListed576Keys,
                 mla_64_pingpong::kTurnsE4m3Keys, mla_64_pingpong::kTurnsRecordsKeys},
                key))
    return std::nullopt;
  const bool plain = problem.cache.format == KvFormat::kPlain;
  return unknown_dimensions(
      problem, by_lists && !plain ? "with an extra cache 512/512 is" : "576/512 and 512/512 are");
}

}  // namespace

const DecodeKernel kMla64PingpongKernel = {
    .name = "mla_64_pingpong",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, and all others; dense and "
        "sparse, any heads, tokens and page size; extra caches and windows of 512/512",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_64_pingpong::launch),
    .declines_turns = declines_turns,
    .turns = turns,
    .times = times,
};

}  // namespace flashlatent::cuda
