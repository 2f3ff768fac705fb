#include "cost/times.h"

#include <algorithm>
#include <cmath>

#include "plan/geometries.h"
#include "plan/line_shares.h"

namespace flashlatent::cost {

namespace {

std::int64_t rounded(double nanoseconds) {
  return std::max<std::int64_t>(std::llround(nanoseconds), 1);
}

double over(double x, double y) {
  return std::ceil(x / y);
}

/// schedule::block_cost_among() of these times.
double block_among(const ItemTimes& t, double busy, double parts) {
  if (t.block_alone == 0 || busy >= parts || t.block_alone >= t.block) return t.block;
  const double crowded = std::max(0.0, (2 * busy - parts) / parts);
  const double slowest = t.block_alone + crowded * std::max(0.0, t.block_near - t.block_alone);
  return std::max(t.block * busy / parts, slowest);
}

/// The part of a share's time that follows the lengths.
double of_blocks(const schedule::Geometry& g) {
  const double shares = std::max(g.parts / std::max(g.requests, 1), 1);
  return over(over(schedule::max_blocks(g), shares), g.team) * g.cost.per_block * g.team;
}

schedule::CallTimes less_if_varied(std::int64_t equal, double blocks) {
  return {equal, rounded(static_cast<double>(equal) - (1 - kMeanOfLongest) * blocks)};
}

/// `mean`: of the items' blocks; `longest`: the last round's, if items stay whole.
double line_time(const schedule::Geometry& g, const ItemTimes& t, Items way, double parts, double mean,
                 double longest) {
  const double items = static_cast<double>(g.requests) * g.rounds;
  const double rounds = over(items, parts), last = items - (rounds - 1) * parts;
  const double whole = t.whole_call + rounds * t.segment + (rounds - 1) * mean * t.block +
                       longest * block_among(t, last, parts);
  if (way == Items::kWhole) return whole;
  const double used = t.lone_share > 0 ? single_shares(g) : 0, shares = std::floor(parts / items);
  const double cut =
      used > 0 ? t.lone_share + shares * t.merge_of_share +
                     over(std::ceil(mean), shares) * block_among(t, used, parts)
               : t.cut_call + t.segment + t.rounding + t.merge + items * (t.segment + mean * t.block) / parts;
  return way == Items::kCut ? cut : std::min(whole, cut);
}

}  // namespace

std::int32_t single_shares(const schedule::Geometry& g) {
  const std::int32_t blocks = schedule::max_blocks(g);
  if (blocks == 0 || g.rounds != 1) return 0;
  const std::int32_t each = g.parts / g.requests;
  if (each < 2) return 0;
  const std::int32_t most = (blocks + each - 1) / each;
  const std::int32_t used = g.requests * ((blocks + most - 1) / most);
  if (g.requests == 1) return used;
  const std::int64_t cost = std::int64_t{g.requests} * schedule::item_cost(g, blocks);
  return schedule::may_share_line(g) && schedule::takes_single_shares(g, cost, most, used) ? used : 0;
}

double expected(const schedule::CallTimes& times) {
  return std::sqrt(static_cast<double>(times.equal) * static_cast<double>(times.varied));
}

ItemTimes ItemTimes::of(const Costs& costs, const schedule::Workers& workers) {
  const schedule::CostModel on = costs.on(workers);
  const double call = on.per_call;
  return {.whole_call = call,
          .cut_call = call,
          // Not on.per_split, which is worth as many blocks on every device.
          .segment = static_cast<double>(costs.segment_on(workers)),
          .merge = static_cast<double>(on.per_merge),
          .block = static_cast<double>(on.per_block),
          .block_alone = static_cast<double>(on.per_block_alone),
          .block_near = static_cast<double>(on.per_block_near)};
}

schedule::CallTimes of_line(const schedule::Geometry& g, const ItemTimes& times, Items items, int parts) {
  if (g.requests == 0) return as_cut(g);
  const double blocks = schedule::max_blocks(g), at_once = std::max(parts, 1);
  // Shapes that give out whole items do not balance lengths.
  const bool by_shape =
      g.partition == schedule::Partition::kWhole || g.partition == schedule::Partition::kTurns;
  const double mean = g.requests > 1 ? kMeanOfLongest * blocks : blocks;
  const double longest = by_shape ? blocks : mean;
  return {rounded(line_time(g, times, items, at_once, blocks, blocks)),
          rounded(line_time(g, times, items, at_once, mean, longest))};
}

schedule::CallTimes of_shares(const schedule::Geometry& g) {
  const std::int64_t equal = schedule::estimate(g);
  const bool by_length = g.partition == schedule::Partition::kSharesByLength ||
                         (g.partition == schedule::Partition::kTeamShares && g.parts >= 2 * g.requests);
  return g.requests > 1 && by_length ? less_if_varied(equal, of_blocks(g))
                                     : schedule::CallTimes{equal, equal};
}

schedule::CallTimes of_team_parts(const schedule::Geometry& g, const TeamCosts& costs) {
  const std::int64_t equal = schedule::estimate(g);
  const bool shared = g.partition == schedule::Partition::kTeamShares && g.parts >= 2 * g.requests;
  if (g.requests < 2 || shared) return of_shares(g);
  // The longest request decides, but reads memory alone once the others have ended.
  const double alone = static_cast<double>(costs.block_alone) / g.team;
  const double blocks = over(schedule::max_blocks(g), g.team) * g.team;
  return less_if_varied(equal, blocks * std::max(0.0, g.cost.per_block - alone));
}

schedule::CallTimes as_cut(const schedule::Geometry& g) {
  const std::int64_t equal = schedule::estimate(g);
  if (g.requests < 2 || !schedule::cuts_line(g.partition)) return of_shares(g);
  schedule::Geometry shorter = g;
  shorter.max_tokens = static_cast<std::int32_t>(kMeanOfLongest * g.max_tokens);
  return {equal, std::max<std::int64_t>(schedule::estimate(shorter), 1)};
}

schedule::CallTimes with(schedule::CallTimes times, double more) {
  return {rounded(static_cast<double>(times.equal) + more),
          rounded(static_cast<double>(times.varied) + more)};
}

}  // namespace flashlatent::cost
