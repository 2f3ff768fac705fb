#include "choose/latent.h"

#include <algorithm>

#include "cost/model.h"
#include "cuda/host/latent_problem.h"
#include "plan/even_shares.h"
#include "plan/geometries.h"
#include "plan/token_lists.h"

namespace flashlatent::choose {

namespace {

constexpr int kBlockTokens = 64;
constexpr cost::Costs kUnplanned = cost::of(cost::Kernel::kLatent, cost::Cut::kUnplanned);

/// Sets the items of a problem by lists. If a request's query tokens differ only by the causal mask, they
/// share row tiles: an item is then a request, and its second list is empty.
void set_lists(const DecodeProblem& problem, schedule::Geometry& g) {
  if (cuda::has_token_items(problem)) {
    schedule::set_lists(g, problem);
  } else {
    g.lists = 2;
    g.list[0] = {.reach = g.max_tokens};
  }
}

/// Do requests have mostly equal lengths? They do if indices name the tokens.
bool is_alike(const DecodeProblem& problem) {
  const ExtraCache& extra = problem.cache.extra;
  return problem.sparse.enabled && (!extra.enabled || extra.indexed);
}

}  // namespace

schedule::Geometry split_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape) {
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = shape.tile_rows;
  g.block_tokens = kBlockTokens;
  g.max_tokens = cuda::reach_of(problem);
  if (cuda::goes_by_lists(problem)) {
    set_lists(problem, g);
  } else if (problem.sparse.enabled) {
    g.length_sharers = problem.query.tokens;
    g.requests *= g.length_sharers;
  }
  if (problem.options.batch_invariant) schedule::fix_splits(g, kFixedSplitTokens / kBlockTokens);
  g.cost = shape.cost.on(workers);
  // The table's per_block_alone is of plain caches. From an fp8_656 cache a block waits for conversion, not
  // for memory.
  if (problem.cache.format != KvFormat::kPlain) g.cost.per_block_alone = 0;
  const int row_tiles = (cuda::rows_of_item(problem) + shape.tile_rows - 1) / shape.tile_rows;
  g.team = shape.team;
  schedule::set_workers(g, row_tiles * problem.cache.heads, workers / g.team);
  return g;
}

schedule::Geometry dense_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape) {
  const schedule::Geometry g = split_geometry(problem, workers, shape);
  const std::optional<schedule::Geometry> whole = schedule::whole_items(g);
  return whole && schedule::never_gains_from_splits(g, *whole, cost::saved(kUnplanned.on(workers))) ? *whole
                                                                                                    : g;
}

std::optional<schedule::Geometry> shares_of_items(const DecodeProblem& problem, schedule::Geometry g,
                                                  const schedule::Workers& workers,
                                                  const ShareLimits& limits) {
  const std::optional<schedule::Geometry> even = schedule::even_items(g);
  if (!even) return std::nullopt;
  const auto has_up_to = [&](int blocks) {
    return schedule::max_blocks(g) <= std::int64_t{blocks} * schedule::even_shares(*even);
  };
  if (is_alike(problem) || g.requests == 1 || has_up_to(limits.few_blocks)) return even;
  const bool tiles = cuda::rows_of_item(problem) > g.tile_rows;
  if (!has_up_to(tiles ? limits.most_blocks_of_tiles : limits.most_blocks)) return std::nullopt;
  cost::add(g.cost, cost::of(cost::Kernel::kLatent, cost::Cut::kReadsPlan).on(workers));
  return schedule::items_by_length(g);
}

schedule::Geometry listed_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                   const DenseShape& of_shares, const schedule::Geometry& otherwise) {
  if (otherwise.partition != schedule::Partition::kLine || !cuda::has_rows_alike(problem)) return otherwise;
  const std::optional<schedule::Geometry> shares =
      shares_of_items(problem, split_geometry(problem, workers, of_shares), workers);
  return shares && schedule::estimate(*shares) < schedule::estimate(otherwise) ? *shares : otherwise;
}

schedule::Geometry in_turn_if_faster(const DecodeProblem& problem, const schedule::Geometry& line) {
  if (line.partition != schedule::Partition::kLine || line.requests < 1 || !is_alike(problem)) return line;
  const schedule::Geometry in_turn = schedule::turns(line);
  return schedule::estimate(in_turn) <= schedule::estimate(line) ? in_turn : line;
}

schedule::Geometry whole_if_faster(const DecodeProblem& problem, const schedule::Geometry& line) {
  if (line.partition != schedule::Partition::kLine || !is_alike(problem)) return line;
  const std::optional<schedule::Geometry> whole = schedule::whole_items(line);
  return whole && schedule::estimate(*whole) <= schedule::estimate(line) ? *whole : line;
}

schedule::Geometry turns_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape) {
  return schedule::turns(split_geometry(problem, workers, shape));
}

}  // namespace flashlatent::choose
