// gqa_16.
#include <algorithm>

#include "choose/cutters.h"
#include "choose/prefix_sharing.h"
#include "choose/prefix_units.h"
#include "choose/thresholds.h"
#include "cost/model.h"
#include "cost/times.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/geometry.h"
#include "cuda/sm90/kernels/gqa_16/takes.h"
#include "plan/geometries.h"

namespace flashlatent::choose {

namespace {

using cost::Cut;
using cost::Tile;

constexpr Gqa16Limits kLimits = kGqa16Limits;
constexpr cost::Kernel kKernel = cost::Kernel::kGqa16;

constexpr cost::Costs kByMemory = cost::of(kKernel, Cut::kByMemory);
constexpr cost::Costs kRows16 = cost::of(kKernel, Tile::kRows16);
constexpr cost::Costs kShares = cost::of(kKernel, Cut::kShares);
constexpr cost::Costs kQueryTokens = cost::of(kKernel, Cut::kQueryTokens);
constexpr cost::Costs kFewRequests = cost::of(kKernel, Cut::kFewRequests);

/// For several query tokens.
void add_query_tokens(schedule::CostModel& costs, const schedule::Workers& workers) {
  costs.per_block += costs.per_block / kLimits.more_by_query_tokens;
  cost::add(costs, kQueryTokens.on(workers));
}

/// The schedule with `tiles` row tiles a CTA; empty if these are neither whole KV heads nor an even part of
/// one KV head.
std::optional<schedule::Geometry> geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                           int tiles) {
  const gqa_16::InstanceKey& key = *gqa_16::key_of(problem);
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = key.columns;
  g.block_tokens = gqa_16::tokens_a_cta(key) / tiles;
  g.max_tokens = cuda::tokens_in_window(problem, g.block_tokens);
  if (problem.options.batch_invariant) schedule::fix_splits(g, kFixedSplitTokens / g.block_tokens);
  const double bytes = 2.0 * g.block_tokens * tiles * problem.cache.qk_dim * gqa_16::element_bytes(problem);
  const int row_tiles = (problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows;
  g.cost = cost::by_memory(kByMemory, bytes, workers, row_tiles);
  if (problem.query.tokens > 1) {
    add_query_tokens(g.cost, workers);
  } else if (g.tile_rows > 8) {
    cost::add(g.cost, kRows16.on(workers));
  }
  schedule::set_workers(g, row_tiles * problem.cache.heads, workers * tiles);
  if (kLimits.parts_of_few * std::int64_t{g.requests} * g.rounds <= g.parts)
    g.cost.per_merge = kFewRequests.on(workers).per_merge;
  const bool fits = g.lanes % tiles == 0 && (row_tiles % tiles == 0 || tiles % row_tiles == 0);
  return fits ? std::optional(g) : std::nullopt;
}

/// A team for each request and tile, if there are few of these: no combine step, and the plan is not read.
/// Empty if requests as long as the page table reaches are faster on all multiprocessors, together or one
/// alone.
std::optional<schedule::Geometry> team_geometry(const DecodeProblem& problem,
                                                const schedule::Workers& workers) {
  const schedule::Geometry split = *geometry(problem, workers, 1);
  const std::int64_t items = std::int64_t{split.requests} * split.rounds;
  for (int team = kLimits.most_team; team > 1; team /= 2) {
    if (items < 1 || split.rounds > 1 || items * split.lanes * team > workers - kUnusedByTeams) continue;
    if (!workers.room.fits(team)) continue;
    const std::int64_t blocks = schedule::max_blocks(split);
    const std::int64_t by_team = (blocks + team - 1) / team * split.cost.per_block;
    const std::int64_t by_parts =
        blocks * split.cost.per_block / split.parts + kByMemory.on(workers).per_merge;
    if (by_team > by_parts) return std::nullopt;
    auto whole = schedule::whole_items(split);
    if (!whole) return std::nullopt;
    whole->team = team;
    whole->cost = cost::by_team(split.cost, team);
    if (schedule::estimate(*whole) > schedule::estimate(split)) return std::nullopt;
    return whole;
  }
  return std::nullopt;
}

/// As many tiles a CTA, up to `most`, as leave every part an item: memory is faster with more tiles, splits
/// are not.
schedule::Geometry geometry_of_tiles(const DecodeProblem& problem, const schedule::Workers& workers,
                                     int most) {
  for (int tiles = std::min(most, gqa_16::warps_of(gqa_16::key_of(problem)->dim)); tiles > 1; tiles /= 2) {
    const auto g = geometry(problem, workers, tiles);
    if (g && 10 * std::int64_t{g->requests} * g->rounds >= std::int64_t{kLimits.least_tenths} * g->parts)
      return *g;
  }
  return *geometry(problem, workers, 1);
}

/// The schedule with shared prefixes, without teams. The costs of groups beside own tokens are known for an
/// H200 only, so plans are cut by an H200's costs on every GPU (docs/log/plans.md).
schedule::Geometry sharing_geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  return geometry_of_tiles(problem, workers.count, kLimits.most_tiles_sharing);
}

/// The geometry with a lower per_call where some parts have one whole item more than others. An estimate
/// assumes that all parts share the bandwidth to the end, but such a last item finds memory nearly idle.
schedule::Geometry with_late_items(schedule::Geometry g, const schedule::Workers& workers) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  if (items == 0 || g.partition != schedule::Partition::kLine) return g;
  const std::int64_t each = (items + g.parts - 1) / g.parts, blocks = schedule::max_blocks(g);
  const std::int64_t late = cost::block_alone(g.cost.per_block, workers);
  const std::int64_t saved = (each * g.parts - items) * blocks * (g.cost.per_block - late) / g.parts;
  const std::int64_t whole = g.cost.per_call + each * schedule::item_cost(g, blocks) - saved;
  const std::int64_t gained = schedule::estimate(g) - whole;
  if (gained > 0) g.cost.per_call -= static_cast<std::int32_t>(gained);
  return g;
}

int row_tiles_of(const DecodeProblem& problem, const schedule::Geometry& g) {
  return (problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows;
}

/// What a block of the row tiles that a CTA does takes of the memory's time, or longer: several row tiles of
/// a KV head read most of it once. In one CTA they take three quarters as long as apart, at most.
double block_time(double bytes, int row_tiles, int tiles, const schedule::Workers& workers) {
  if (row_tiles == 1) return bytes / (cost::kRates.in_calls / 10.0) * workers.memory;
  const double of_share = bytes / (cost::kRates.share / 10.0);
  if (tiles == 1) {
    return of_share * cost::kTilesApart * (workers.memory + (row_tiles - 1) * workers.clock) / row_tiles;
  }
  return of_share *
         std::max<double>(workers.memory / std::min(row_tiles, tiles), cost::kTilesTogether * workers.clock);
}

prefix::Shape prefix_shape(const DecodeProblem& problem, const schedule::Workers& workers) {
  const schedule::Geometry g = sharing_geometry(problem, workers);
  prefix::Shape shape = prefix_units_shape(problem, workers.count);
  shape.own_block_cost = cost::block_alone(g.cost.per_block, workers.count);
  shape.own_split_cost = g.cost.per_split;
  shape.lanes_a_worker = gqa_16::tiles_a_cta(problem, g);
  return shape;
}

/// With batch_invariant a CTA has one tile.
schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  if (problem.options.batch_invariant) return *geometry(problem, workers, 1);
  if (prefix_shape_of(kGqa16, problem, workers).requests > 0) return sharing_geometry(problem, workers);
  if (const auto team = team_geometry(problem, workers)) return *team;
  const schedule::Geometry g =
      with_late_items(geometry_of_tiles(problem, workers, kLimits.most_tiles), workers);
  return schedule::with_shares_merged_in(g, kShares.on(workers).per_merge);
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  if (problem.rows_per_kv_head() > kLimits.most_rows_of_times) return cost::as_cut(g);
  const gqa_16::InstanceKey& key = *gqa_16::key_of(problem);
  const bool many_rows = problem.rows_per_kv_head() > 8;
  const auto costs = [&] {
    if (problem.query.tokens > 1) {
      if (key.dim > 128 && problem.rows_per_kv_head() > 4)
        return cost::of(kKernel, {Cut::kTimesQueryTokens, Tile::kDim256});
      return many_rows ? cost::of(kKernel, {Cut::kTimesQueryTokens, Tile::kRows16})
                       : cost::of(kKernel, {Cut::kTimesQueryTokens, Tile::kRows8});
    }
    return many_rows ? cost::of(kKernel, {Cut::kTimes, Tile::kRows16})
                     : cost::of(kKernel, {Cut::kTimes, Tile::kRows8});
  };
  const int tiles = gqa_16::tokens_a_cta(key) / g.block_tokens;
  const double bytes = 2.0 * g.block_tokens * tiles * problem.cache.qk_dim * gqa_16::element_bytes(problem);
  cost::ItemTimes times = cost::ItemTimes::of(costs(), workers);
  const double segment = times.whole_call + times.segment;
  const cost::Costs of_dim =
      key.dim <= 64 ? cost::of(kKernel, Tile::kDim64) : cost::of(kKernel, Tile::kDim128);
  const std::int32_t least = of_dim.on(workers).per_block_alone;
  times.block_alone = times.block_near =
      std::max<double>(bytes / (cost::kRates.most / 10.0) * workers.clock, least);
  if (g.team > 1) {
    const int blocks = (schedule::max_blocks(g) + g.team - 1) / g.team;
    const double call = segment + cost::of(kKernel, Cut::kTeams).on(workers).per_call;
    return cost::with({}, call + blocks * times.block_alone);
  }
  times.lone_share = segment + cost::of(kKernel, Cut::kTimes).lone_share_on(workers);
  times.merge = cost::of(kKernel, Cut::kTimes).on(workers).per_merge;
  times.block = block_time(bytes, row_tiles_of(problem, g), tiles, workers);
  return cost::of_line(g, times, cost::Items::kFaster, g.parts);
}

}  // namespace

const Cutter kGqa16 = {
    .kernel = cuda::kGqa16Kernel, .geometry = geometry, .times = times, .prefix_shape = prefix_shape};

}  // namespace flashlatent::choose
