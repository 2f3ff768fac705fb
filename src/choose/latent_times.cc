#include "choose/latent_times.h"

#include "plan/geometries.h"

namespace flashlatent::choose {

schedule::CallTimes dense_times(const schedule::Geometry& g, const schedule::Workers& workers,
                                const cost::Costs& costs) {
  cost::ItemTimes times = cost::ItemTimes::of(costs, workers);
  times.cut_call = g.cost.per_call;
  times.rounding = times.block;
  times.lone_share = costs.lone_share_on(workers);
  constexpr cost::Costs kOfShares = cost::of(cost::Kernel::kLatent, cost::Cut::kTimes);
  times.merge_of_share = kOfShares.on(workers).per_merge;
  const bool by_shape =
      g.partition == schedule::Partition::kWhole || g.partition == schedule::Partition::kTurns;
  const cost::Items items = schedule::stays_whole(g) ? cost::Items::kWhole : cost::Items::kCut;
  return cost::of_line(g, times, items, by_shape ? workers / g.lanes : g.parts);
}

schedule::CallTimes share_times(schedule::Geometry g, const schedule::Workers& workers,
                                const cost::Costs& costs) {
  g.cost.per_split = costs.segment_on(workers);
  return cost::of_shares(g);
}

schedule::CallTimes with_query_tokens(const schedule::CallTimes& times, const DecodeProblem& problem,
                                      const cost::Costs& of, const schedule::Workers& workers) {
  return problem.query.tokens > 1 ? cost::with(times, of.on(workers).per_call) : times;
}

}  // namespace flashlatent::choose
