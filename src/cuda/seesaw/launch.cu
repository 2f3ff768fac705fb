#include <algorithm>

#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/seesaw/instances.h"
#include "plan/host_plan.h"
#include "plan/shares.h"

namespace flashlatent::cuda {

namespace {

// Costs in nanoseconds: a block at 32 to 64 heads, 5 us from the last block to the last byte, 2 from Q to the
// first scores. per_call leaves a call of a few blocks a CTA, all of them split, at 18 us beside its blocks.
constexpr DenseShape kShape = {
    .tile_rows = 64, .cost = {.per_block = 2200, .per_split = 7000, .per_call = -3000, .per_merge = 11300}};
// Two row tiles find a block of each other's in L2.
constexpr DenseShape kShapeOfTiles = {
    .tile_rows = 64, .cost = {.per_block = 1750, .per_split = 7000, .per_call = -3000, .per_merge = 11300}};

/// By which a call of one request and two row tiles is faster: 4,096 to 16,384 tokens take 15 to 20 us, and
/// of bf16, whose partial results are half as many bytes, 13 to 18.
constexpr int kLoneRequest = 3000;
constexpr int kLoneRequestOfBf16 = 5500;

// From an fp8_656 cache conversion is what takes time.
constexpr DenseShape kShapeFp8 = {
    .tile_rows = 64, .cost = {.per_block = 3400, .per_split = 7000, .per_call = 3500, .per_merge = 8300}};

const DenseInstance* find(const DecodeProblem& problem, Loading loading, int cluster, int team = 1,
                          bool merges = false) {
  const auto& cache = problem.cache;
  return find_instance(
      {seesaw::kInstances576x512, seesaw::kInstances512x512, seesaw::kInstances320x256,
       seesaw::kInstancesFp8_656, seesaw::kTeams576x512, seesaw::kMerging576x512, seesaw::kMergingFp8_656},
      {cache.dtype, cache.qk_dim, cache.v_dim, kShape.tile_rows, loading, cluster, team, merges});
}

/// Neighbouring lanes may share KV blocks if they are tiles of the same KV head, and do where loading is what
/// binds, from an fp8_656 cache. By TMA each loads its own: 0.233 ms against 0.246 in step with another CTA.
/// Not ragged ones: the second tile of a short request has no rows, and no blocks then.
int cluster_of(const DecodeProblem& problem, const schedule::Geometry& g, Loading loading) {
  if (loading != Loading::kFp8) return 1;
  const int row_tiles = (problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows;
  return g.lanes % 2 == 0 && row_tiles % 2 == 0 && !problem.query.ragged ? 2 : 1;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.cache.layout != KvLayout::kLatent) return not_latent(problem);
  if (find(problem, loading_of(problem), 1) == nullptr) return unknown_dimensions(problem);
  return std::nullopt;
}

/// Of a team's CTA, from calls of 1 to 32 blocks a CTA: a block takes 1.6 us where 32 CTAs have one, 1.9 to
/// 2.2 where 96 have.
constexpr schedule::CostModel kTeamCost = {.per_block = 1950, .per_split = 8000};
/// SMs that are left over, since clusters lie within GPCs.
constexpr int kUnusedSms = 12;

/// A team of so many CTAs for each request and row tile, where there is room for all of them at once: no plan
/// to read, no workspace, no combine step.
std::optional<schedule::Geometry> team_geometry(const DecodeProblem& problem, int workers, int team) {
  const int teams = std::max(workers - kUnusedSms, 0) / team;
  if (teams == 0 || loading_of(problem) != Loading::kBoxes ||
      find(problem, Loading::kBoxes, 1, team) == nullptr)
    return std::nullopt;
  schedule::Geometry g =
      split_geometry(problem, teams * team, {.tile_rows = kShape.tile_rows, .cost = kTeamCost, .team = team});
  g.lanes *= g.rounds;
  g.rounds = 1;
  g.parts = teams / g.lanes;
  g.cost.per_block = kTeamCost.per_block / team;
  return schedule::whole_items(g);
}

/// Of a CTA of a team that has an even share of a request, from one request of 16,384 to 131,072 tokens, 64
/// heads: 2, 8 and 16 blocks take 17.0, 31.8 and 49.2 us.
constexpr schedule::CostModel kEvenTeamCost = {.per_block = 2150, .per_split = 10700, .per_merge = 2000};
constexpr schedule::CostModel kEvenTeamCostOfTwoTiles = {
    .per_block = 1750, .per_split = 10750, .per_merge = 2000};
constexpr int kEvenTeam = 2;
/// Of several requests, with up to so many blocks a CTA as many parts each are faster, even where they differ
/// in length: by 0.7 us, since nobody reads the plan.
constexpr int kFewBlocks = 5;
constexpr int kReadsPlan = 700;
/// With more than so many blocks a CTA, a request must have so many parts, of which one is half empty, or
/// varied lengths are shared out better on a line; not one that fills one row tile, since others' segments
/// cost a line's CTAs less.
constexpr int kManyBlocks = 8;
constexpr int kManyParts = 6;

const DenseInstance* find_even_team(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  return find_instance({seesaw::kEvenTeams576x512}, {cache.dtype, cache.qk_dim, cache.v_dim, kShape.tile_rows,
                                                     Loading::kBoxes, 1, kEvenTeam});
}

/// Teams of two, on all SMs, that have equal shares of each request, of one or two row tiles, as many as its
/// length asks for, and a combine step: half as many partial results as CTAs alone leave. One request of two
/// row tiles gained nothing. `alone` is how these would do it.
std::optional<schedule::Geometry> even_team_geometry(const DecodeProblem& problem, int workers,
                                                     const schedule::Geometry& alone) {
  // Where CTAs alone never split, a workspace for larger batches may have no room for partial results.
  if (alone.whole != schedule::kCutLine || loading_of(problem) != Loading::kBoxes ||
      find_even_team(problem) == nullptr)
    return std::nullopt;
  schedule::Geometry split =
      split_geometry(problem, workers, {.tile_rows = kShape.tile_rows, .team = kEvenTeam});
  if (split.lanes > 2 || (split.lanes == 2 && split.requests == 1)) return std::nullopt;
  split.cost = split.lanes == 1 ? kEvenTeamCost : kEvenTeamCostOfTwoTiles;
  split.cost.per_block /= kEvenTeam;
  std::optional<schedule::Geometry> even = schedule::even_items(split);
  if (!even) return std::nullopt;
  const int parts = schedule::even_shares(*even);
  const auto has_up_to = [&](int blocks) {
    return schedule::max_blocks(split) <= blocks * parts * kEvenTeam;
  };
  if (split.requests == 1 || has_up_to(kFewBlocks)) return even;
  const bool fills_tile = split.lanes == 1 && problem.rows_per_kv_head() > kShape.tile_rows / 2;
  if (!has_up_to(kManyBlocks) && parts < kManyParts && !fills_tile) return std::nullopt;
  split.cost.per_call += kReadsPlan;
  return schedule::items_by_length(split);
}

/// Of few sparse requests, which have mostly as many tokens as each other, parts are even: seesaw/even.cuh.
schedule::Geometry fp8_geometry(const DecodeProblem& problem, int workers) {
  const schedule::Geometry g = dense_geometry(problem, workers, kShapeFp8);
  if (!problem.sparse.enabled || cluster_of(problem, g, Loading::kFp8) == 1) return g;
  const std::optional<schedule::Geometry> even = schedule::even_items(g);
  return even && schedule::estimate(*even) <= schedule::estimate(g) ? *even : g;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  if (problem.cache.format == KvFormat::kFp8_656) return fp8_geometry(problem, workers);
  const bool one_tile = problem.rows_per_kv_head() <= kShape.tile_rows;
  schedule::Geometry best = dense_geometry(problem, workers, one_tile ? kShape : kShapeOfTiles);
  if (best.whole == schedule::kCutLine && best.requests == 1 && best.lanes == 2) {
    best.cost.per_call -= problem.cache.dtype == Dtype::kBF16 ? kLoneRequestOfBf16 : kLoneRequest;
  }
  const std::optional<schedule::Geometry> even = even_team_geometry(problem, workers, best);
  const auto take_faster = [&](const std::optional<schedule::Geometry>& g) {
    if (g && schedule::estimate(*g) < schedule::estimate(best)) best = *g;
  };
  for (int team : {8, 4, 2}) take_faster(team_geometry(problem, workers, team));
  take_faster(even);
  return best;
}

/// Teams need none, but smaller batches may be split: callers ask at the largest.
std::size_t workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  if (g.team == 1) return decode_workspace_bytes(problem, g);
  constexpr std::size_t kMostSms = 144;  // two partial results each
  return parts::kMergeStateBytes +
         2 * kMostSms * kShape.tile_rows * (problem.cache.v_dim + 1) * sizeof(float);
}

bool has_even_teams(const schedule::Geometry& g) {
  return g.whole >= schedule::kEven && g.team > 1;
}

/// Of no pages there are no boxes, and nothing to share out: CTAs alone take what was even teams'.
Status launch_without_pages(const DecodeCall& call) {
  schedule::Geometry g = call.geometry;
  g.parts = g.requests;
  g.team = 1;
  g.whole = schedule::kWhole;
  return launch_dense(call.with(g),
                      [](const DecodeCall& c, Loading loading) { return find(c.problem, loading, 1); });
}

Status launch(const DecodeCall& call) {
  if (has_even_teams(call.geometry) && call.inputs.kv_cache.shape[0] == 0) {
    return launch_without_pages(call);
  }
  return launch_dense(call, [](const DecodeCall& c, Loading loading) {
    const DecodeProblem& p = c.problem;
    if (has_even_teams(c.geometry)) return find_even_team(p);
    if (c.geometry.whole == schedule::kEven) {
      return find_instance({seesaw::kEvenFp8_656},
                           {p.cache.dtype, p.cache.qk_dim, p.cache.v_dim, kShape.tile_rows, loading, 2, 1});
    }
    const int team = c.geometry.team;
    if (team == 1) {
      const int cluster = cluster_of(c.problem, c.geometry, loading);
      const bool merges = merges_in_kernel(c.geometry);
      const DenseInstance* merging = merges ? find(p, loading, cluster, 1, true) : nullptr;
      return merging != nullptr ? merging : find(p, loading, cluster);
    }
    // Of no pages there are no boxes: a CTA alone takes what was a team's part.
    return find(c.problem, loading, 1, loading == Loading::kBoxes ? team : 1);
  });
}

}  // namespace

const DecodeKernel kSeesawKernel = {
    .name = "seesaw",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, fp8_656; dense and sparse, any "
        "heads, tokens and page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = workspace_bytes,
    .launch = launch,
};

}  // namespace flashlatent::cuda
