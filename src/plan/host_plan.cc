#include "plan/host_plan.h"

#include <algorithm>
#include <array>
#include <limits>

#include "plan/even_shares.h"
#include "plan/host_packing.h"
#include "plan/line_shares.h"
#include "plan/shares_by_length.h"
#include "plan/team_shares.h"
#include "plan/whole.h"
#include "plan/whole_parts.h"

namespace flashlatent::schedule {

namespace {

template <class Lengths>
void cut_fixed(const Geometry& g, const Lengths& lengths, PlanView plan) {
  plan.partial_prefix[0] = 0;
  for (std::int32_t r = 0; r < g.requests; ++r) {
    const std::int32_t splits = fixed_splits_of(g, blocks_of(g, length_of(g, lengths, r)));
    plan.partial_prefix[r + 1] = plan.partial_prefix[r] + (splits > 1 ? splits : 0);
  }
  for (std::int32_t k = 0; k <= g.parts; ++k) {
    Cut cut = fixed_cut(g, point_at(g, plan.cost_prefix, k), lengths);
    cut.partial = fixed_partial(g, plan.partial_prefix, cut);
    plan.cuts[k] = cut;
  }
  const std::int32_t round_partials = plan.partial_prefix[g.requests];
  std::int32_t merges = 0;
  for (std::int32_t round = 0; round < g.rounds; ++round) {
    for (std::int32_t r = 0; r < g.requests; ++r) {
      if (plan.partial_prefix[r + 1] == plan.partial_prefix[r]) continue;
      const std::int32_t base = round * round_partials;
      plan.merges[merges++] = {round, r, base + plan.partial_prefix[r], base + plan.partial_prefix[r + 1]};
    }
  }
  plan.header->merges = merges;
  plan.header->partials = g.rounds * round_partials;
}

void cut_by_item(const Geometry& g, PlanView plan) {
  for (std::int32_t k = 0; k <= g.parts; ++k) plan.cuts[k] = whole_cut(g, k);
}

void cut_for_teams(const Geometry& g, PlanView plan) {
  for (std::int32_t k = 0; k <= g.parts; ++k) plan.cuts[k] = stored(team_cut(g, plan.cost_prefix, k));
  plan.header->partials = g.parts;
}

void cut_evenly(const Geometry& g, PlanView plan) {
  for (std::int32_t k = 0; k <= g.parts; ++k) plan.cuts[k] = stored(even_cut(g, k));
  for (std::int32_t r = 0; r < g.requests; ++r) plan.merges[r] = even_merge(g, r);
  plan.header->merges = g.requests;
  plan.header->partials = g.requests * even_shares(g);
}

template <class Lengths>
void cut_by_length(const Geometry& g, const Lengths& lengths, PlanView plan) {
  auto blocks_at = [&](std::int32_t r) { return blocks_of(g, length_of(g, lengths, r)); };
  std::int32_t blocks = 0;
  for (std::int32_t r = 0; r < g.requests; ++r) blocks += blocks_at(r);
  const std::int32_t most = least_longest_share(g, blocks, [&](std::int32_t m) {
    std::int32_t shares = 0;
    for (std::int32_t r = 0; r < g.requests; ++r) shares += shares_within(blocks_at(r), m);
    return shares;
  });
  std::int32_t k = 0;
  for (std::int32_t r = 0; r < g.requests; ++r) {
    const std::int32_t shares = shares_within(blocks_at(r), most);
    plan.merges[r] = {0, r, k, k + shares};
    for (std::int32_t share = 0; share < shares; ++share, ++k) {
      plan.cuts[k] = stored(ShareCut{shares, r, share, k});
    }
  }
  plan.header->merges = g.requests;
  plan.header->partials = k;
  for (; k <= g.parts; ++k) plan.cuts[k] = stored(no_share(g, plan.header->partials));
}

/// Cuts the line into single shares, if takes_single_shares() says so; returns whether it did. Places of
/// partial results are not set.
template <class Lengths>
bool cut_single_shares(const Geometry& g, const Lengths& lengths, PlanView plan) {
  if (!may_share_line(g)) return false;
  std::array<std::int32_t, kMostSingleShares> blocks, ends;
  std::int64_t all = 0;
  for (std::int32_t r = 0; r < g.requests; ++r) {
    blocks[r] = blocks_of(g, length_of(g, lengths, r));
    all += blocks[r];
  }
  if (all == 0 || all > std::numeric_limits<std::int32_t>::max()) return false;
  const auto shares_at = [&](std::int32_t most) {
    std::int64_t shares = 0;
    for (std::int32_t r = 0; r < g.requests; ++r) shares += shares_within(blocks[r], most);
    return shares;
  };
  const std::int32_t most = least_longest_share(g, static_cast<std::int32_t>(all), shares_at);
  std::int32_t used = 0;
  for (std::int32_t r = 0; r < g.requests; ++r) ends[r] = used += shares_within(blocks[r], most);
  if (!takes_single_shares(g, plan.cost_prefix[g.requests], most, used)) return false;
  for (std::int32_t k = 0; k <= g.parts; ++k) plan.cuts[k] = single_share_cut(g, ends.data(), lengths, k);
  return true;
}

template <class Lengths>
void cut_line(const Geometry& g, const Lengths& lengths, bool packs, PlanView plan) {
  for (std::int32_t k = 0; k <= g.parts; ++k) {
    plan.cuts[k] = nearest_item_end(g, plan.cost_prefix, point_at(g, plan.cost_prefix, k));
  }
  bool whole = true;  // do all parts fit if items stay whole?
  for (std::int32_t k = 0; k < g.parts; ++k) {
    whole = whole && whole_part_fits(g, plan.cost_prefix, plan.cuts[k], plan.cuts[k + 1]);
  }
  const bool single = !whole && cut_single_shares(g, lengths, plan);
  for (std::int32_t k = 0; k <= g.parts && !whole && !single; ++k) {
    plan.cuts[k] = line_cut(g, point_at(g, plan.cost_prefix, k), lengths);
  }
  for (std::int32_t r = 0; r < g.requests; ++r) {
    plan.successors[r] = r + 1 < g.requests ? r + 1 : ~0;
  }
  if (kCostsSegments<Lengths> && packs && !whole && !single) pack_items(g, plan);
  std::int32_t segments = 0;  // segments that begin inside an item, up to this cut
  std::int32_t merges = 0;    // items that are cut, up to this cut
  Cut before{0, 0, 0, 0};
  for (std::int32_t k = 0; k <= g.parts; ++k) {
    Cut cut = plan.cuts[k];
    segments += opens_segment(cut, before);
    merges += opens_merge(cut, before);
    cut.partial = balanced_partial(cut, segments, merges);
    if (opens_merge(cut, before)) plan.merges[merges - 1] = {cut.round, cut.request, cut.partial - 1, 0};
    // the item's last cut sets the final value
    if (cut.block > 0) plan.merges[merges - 1].partial_end = cut.partial + 1;
    plan.cuts[k] = cut;
    before = cut;
  }
  plan.header->merges = merges;
  plan.header->partials = segments + merges;
}

/// Lengths: a pointer to one list's lengths, UnionLengths, or RaggedLengths.
template <class Lengths>
void build(const Geometry& all, const Lengths& lengths, void* memory, const Building& building) {
  const PlanView plan = plan_view(all, memory);
  const std::int32_t used_parts = building.parts_of(all);
  Geometry g = with_parts(all, used_parts);
  if (!kCostsSegments<Lengths>) g.cost.per_block_alone = 0;
  *plan.header = {};
  plan.cost_prefix[0] = 0;
  for (std::int32_t r = 0; r < g.requests; ++r) {
    plan.cost_prefix[r + 1] = plan.cost_prefix[r] + cost_of_item(g, lengths, r);
  }
  plan.header->fingerprint = fingerprint(all);
  plan.header->total_cost = plan.cost_prefix[g.requests] * g.rounds;
  switch (g.partition) {
    case Partition::kLine:
      cut_line(g, lengths, building.packs, plan);
      break;
    case Partition::kWhole:
    case Partition::kTurns:
      cut_by_item(g, plan);
      break;
    case Partition::kTeamShares:
      cut_for_teams(g, plan);
      break;
    case Partition::kEvenShares:
      cut_evenly(g, plan);
      break;
    case Partition::kSharesByLength:
      cut_by_length(g, lengths, plan);
      break;
    case Partition::kFixedSplits:
      cut_fixed(g, lengths, plan);
      break;
  }
  for (std::int32_t k = used_parts + 1; k <= all.parts; ++k) plan.cuts[k] = plan.cuts[used_parts];
}

}  // namespace

void build_on_host(const Geometry& g, const std::int32_t* lengths, void* memory, const Building& building) {
  build(g, lengths, memory, building);
}

void build_on_host(const Geometry& g, const UnionLengths& lengths, void* memory, const Building& building) {
  build(g, lengths, memory, building);
}

void build_on_host(const Geometry& g, const RaggedLengths& lengths, void* memory, const Building& building) {
  build(g, lengths, memory, building);
}

}  // namespace flashlatent::schedule
