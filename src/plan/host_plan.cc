#include "plan/host_plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "core/message.h"
#include "plan/packing.h"
#include "plan/shares.h"

namespace flashlatent::schedule {

namespace {

void cut_fixed(const Geometry& g, const std::int32_t* lengths, PlanView plan) {
  plan.slot_prefix[0] = 0;
  for (std::int32_t r = 0; r < g.requests; ++r) {
    const std::int32_t splits = fixed_splits_of(g, blocks_of(g, length_of(g, lengths, r)));
    plan.slot_prefix[r + 1] = plan.slot_prefix[r] + (splits > 1 ? splits : 0);
  }
  for (std::int32_t k = 0; k <= g.parts; ++k) {
    Cut cut = cut_at(g, plan.cost_prefix, k, lengths);
    cut.slot = fixed_slot(g, plan.slot_prefix, cut);
    plan.cuts[k] = cut;
  }
  const std::int32_t round_slots = plan.slot_prefix[g.requests];
  std::int32_t merges = 0;
  for (std::int32_t round = 0; round < g.rounds; ++round) {
    for (std::int32_t r = 0; r < g.requests; ++r) {
      if (plan.slot_prefix[r + 1] == plan.slot_prefix[r]) continue;
      const std::int32_t base = round * round_slots;
      plan.merges[merges++] = {round, r, base + plan.slot_prefix[r], base + plan.slot_prefix[r + 1]};
    }
  }
  plan.header->merges = merges;
  plan.header->slots = g.rounds * round_slots;
}

void cut_into_shares(const Geometry& g, PlanView plan) {
  for (std::int32_t k = 0; k <= g.parts; ++k) plan.cuts[k] = shared_cut(g, plan.cost_prefix, k);
  plan.header->slots = g.parts;
}

void cut_evenly(const Geometry& g, PlanView plan) {
  for (std::int32_t k = 0; k <= g.parts; ++k) plan.cuts[k] = even_cut(g, k);
  for (std::int32_t r = 0; r < g.requests; ++r) plan.merges[r] = even_merge(g, r);
  plan.header->merges = g.requests;
  plan.header->slots = g.requests * even_shares(g);
}

void cut_by_length(const Geometry& g, const std::int32_t* lengths, PlanView plan) {
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
    for (std::int32_t share = 0; share < shares; ++share, ++k) plan.cuts[k] = {shares, r, share, k};
  }
  plan.header->merges = g.requests;
  plan.header->slots = k;
  for (; k <= g.parts; ++k) plan.cuts[k] = no_part(g, plan.header->slots);
}

/// Items for pack_parts(), those that cost most first.
class Items {
 public:
  Items(const Geometry& g, const std::int64_t* cost_prefix) : order_(g.requests) {
    auto cost = [&](std::int32_t r) {
      return static_cast<std::int32_t>(cost_prefix[r + 1] - cost_prefix[r]);
    };
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::int32_t a, std::int32_t b) { return cost(a) > cost(b); });
    for (std::int32_t r : order_) costs_.push_back(cost(r));
    put_back();
  }

  void put_back() {
    taken_.assign(order_.size(), false);
    requests_.clear();
  }

  Unpacked longest() const { return longest_within(std::numeric_limits<std::int32_t>::max()); }
  Unpacked longest_within(std::int32_t cost) const {
    auto i = std::lower_bound(costs_.begin(), costs_.end(), cost, std::greater<>()) - costs_.begin();
    while (i < std::ssize(costs_) && taken_[i]) ++i;
    return i < std::ssize(costs_) ? item(i) : kNone;
  }
  Unpacked shortest() const {
    auto i = std::ssize(costs_) - 1;
    while (i >= 0 && taken_[i]) --i;
    return i >= 0 ? item(i) : kNone;
  }
  void take(Unpacked item) {
    taken_[item.place] = true;
    requests_.push_back(order_[item.place]);
  }

  /// In the order of takes.
  const std::vector<std::int32_t>& requests() const { return requests_; }

 private:
  static constexpr Unpacked kNone{-1, -1};
  Unpacked item(std::ptrdiff_t place) const { return {static_cast<std::int32_t>(place), costs_[place]}; }

  std::vector<std::int32_t> order_, costs_, requests_;
  std::vector<bool> taken_;
};

/// Partial results of these cuts.
std::int32_t slots_of(const Geometry& g, const Cut* cuts) {
  std::int32_t slots = 0;
  for (std::int32_t k = 1; k <= g.parts; ++k) {
    slots += opens_segment(cuts[k], cuts[k - 1]) + opens_merge(cuts[k], cuts[k - 1]);
  }
  return slots;
}

/// Other cuts, without slots, and successors, if packing leaves fewer partial results than the cuts there
/// are.
void pack_items(const Geometry& g, PlanView plan) {
  const std::int64_t round_cost = plan.cost_prefix[g.requests];
  if (!may_pack(g, round_cost)) return;
  Items items(g, plan.cost_prefix);
  std::vector<Cut> cuts(g.parts + 1);  // with the item's place in the order as request
  auto cut = [&](std::int32_t k, std::int32_t item, std::int32_t block) { cuts[k] = {0, item, block, 0}; };
  bool fits = false;
  for (std::int32_t i = 0; i < kPackings && !fits; ++i) {
    items.put_back();
    fits = pack_parts(g, packing_bound(g, round_cost, i), items, cut);
  }
  if (!fits) return;
  const std::vector<std::int32_t>& order = items.requests();
  for (Cut& c : cuts) c = packed_cut(g, c.request, c.block, order.data());
  if (slots_of(g, cuts.data()) >= slots_of(g, plan.cuts)) return;
  std::copy(cuts.begin(), cuts.end(), plan.cuts);
  for (std::int32_t i = 0; i < g.requests; ++i)
    plan.successors[order[i]] = packed_successor(g, i, order.data());
}

void cut_balanced(const Geometry& g, const std::int32_t* lengths, PlanView plan) {
  bool whole = true;  // do all parts fit if items stay whole?
  for (std::int32_t k = 0; k < g.parts; ++k) whole = whole && whole_part_fits(g, plan.cost_prefix, k);
  for (std::int32_t k = 0; k <= g.parts; ++k) {
    plan.cuts[k] = balanced_cut(g, plan.cost_prefix, k, lengths, whole);
  }
  for (std::int32_t r = 0; r < g.requests && plan.successors != nullptr; ++r) {
    plan.successors[r] = r + 1 < g.requests ? r + 1 : ~0;
  }
  if (!whole) pack_items(g, plan);
  std::int32_t segments = 0;  // segments opened inside items, up to this cut
  std::int32_t merges = 0;    // items cut, up to this cut
  Cut before{0, 0, 0, 0};
  for (std::int32_t k = 0; k <= g.parts; ++k) {
    Cut cut = plan.cuts[k];
    segments += opens_segment(cut, before);
    merges += opens_merge(cut, before);
    cut.slot = balanced_slot(cut, segments, merges);
    if (opens_merge(cut, before)) plan.merges[merges - 1] = {cut.round, cut.request, cut.slot - 1, 0};
    if (cut.block > 0) plan.merges[merges - 1].slot_end = cut.slot + 1;  // until the item's last cut
    plan.cuts[k] = cut;
    before = cut;
  }
  plan.header->merges = merges;
  plan.header->slots = segments + merges;
}

}  // namespace

Status validate(const Geometry& g) {
  if (g.requests < 0 || g.parts < 1 || g.lanes < 1 || g.rounds < 1 || g.block_tokens < 1 ||
      g.max_tokens < 0 || g.fixed_split < 0 || g.length_sharers < 1 || g.cost.per_block < 1 ||
      g.cost.per_split < 0 || g.cost.per_merge < 0 || g.cost.per_block_alone < 0 || g.team < 1 ||
      g.whole < kCutLine || g.whole > kByLength || (g.whole != kCutLine && g.fixed_split > 0) ||
      (g.whole == kWhole && std::int64_t{g.requests} * g.rounds != g.parts) ||
      (g.whole >= kShared && (g.rounds != 1 || g.requests < 1 || g.requests > g.parts)) ||
      (g.whole >= kEven && g.parts < 2 * g.requests) ||
      (g.whole == kByLength && (g.requests > kMostByLength || g.length_sharers > 1))) {
    return {StatusCode::kInternal, "a kernel's schedule geometry is out of range"};
  }
  // In floating point: the integers are what might overflow.
  const double items = static_cast<double>(g.requests) * g.rounds;
  const double cost = items * static_cast<double>(item_cost(g, max_blocks(g)));
  const double slots = g.fixed_split > 0 ? items * fixed_splits_of(g, max_blocks(g)) : 2.0 * g.parts;
  if (cost >= 0x1p62 || slots * g.lanes * g.tile_rows >= 0x1p31) {
    return unsupported("a plan of ", g.requests, " requests x ", g.rounds, " rounds x ", max_blocks(g),
                       " blocks overflows; fewer requests, query rows or max_pages are accepted");
  }
  // per_call may be negative, but not so much that a call would take less than no time.
  if (estimate(g) < 0) return {StatusCode::kInternal, "a kernel's costs make a call's time negative"};
  return {};
}

void build_on_host(const Geometry& g, const std::int32_t* lengths, void* memory) {
  build_on_host(g, lengths, memory, g.parts);
}

void build_on_host(const Geometry& whole, const std::int32_t* lengths, void* memory,
                   std::int32_t used_parts) {
  const PlanView plan = plan_view(whole, memory);
  const Geometry g = with_parts(whole, used_parts);
  *plan.header = {};
  plan.cost_prefix[0] = 0;
  for (std::int32_t r = 0; r < g.requests; ++r) {
    plan.cost_prefix[r + 1] = plan.cost_prefix[r] + item_cost(g, blocks_of(g, length_of(g, lengths, r)));
  }
  plan.header->fingerprint = fingerprint(whole);
  plan.header->total_cost = plan.cost_prefix[g.requests] * g.rounds;
  if (g.fixed_split > 0) {
    cut_fixed(g, lengths, plan);
  } else if (g.whole == kShared) {
    cut_into_shares(g, plan);
  } else if (g.whole == kEven) {
    cut_evenly(g, plan);
  } else if (g.whole == kByLength) {
    cut_by_length(g, lengths, plan);
  } else {
    cut_balanced(g, lengths, plan);
  }
  for (std::int32_t k = used_parts + 1; k <= whole.parts; ++k) plan.cuts[k] = plan.cuts[used_parts];
}

namespace {

/// With items cut into equal shares.
std::int64_t split_estimate(const Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  return g.cost.per_call + items * item_cost(g, max_blocks(g)) / g.parts + g.cost.per_block +
         g.cost.per_split + g.cost.per_merge;
}

std::int64_t over(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

/// Where shapes make the parts: with the longest share of a CTA.
std::int64_t share_estimate(const Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  const std::int64_t blocks = over(over(max_blocks(g), g.parts / items), g.team);
  return g.cost.per_call + g.cost.per_split + blocks * g.cost.per_block * g.team +
         (g.parts > items ? g.cost.per_merge : 0);
}

}  // namespace

std::int64_t estimate(const Geometry& g) {
  if (g.fixed_split > 0) return std::int64_t{g.rounds} * g.lanes * item_cost(g, g.fixed_split);
  if (g.requests == 0) return std::max(g.cost.per_call, 0);
  if (g.whole >= kShared || (g.whole == kWhole && g.team > 1)) return share_estimate(g);
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  const std::int64_t item = g.cost.per_split + std::int64_t{max_blocks(g)} * whole_block_cost(g);
  const std::int64_t whole = (items + g.parts - 1) / g.parts * item;
  return std::min(g.cost.per_call + whole, split_estimate(g));
}

std::optional<Geometry> whole_items(Geometry g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  if (items < 1 || items > g.parts || g.fixed_split > 0) return std::nullopt;
  g.parts = static_cast<std::int32_t>(items);
  g.whole = kWhole;
  return g;
}

std::optional<Geometry> even_items(Geometry g) {
  if (g.whole != kCutLine || g.fixed_split > 0 || g.rounds != 1 || g.requests < 1) return std::nullopt;
  const std::int64_t most = std::int64_t{g.requests} * max_blocks(g);  // of a block each
  g.parts = static_cast<std::int32_t>(std::min<std::int64_t>(g.parts, most));
  if (2LL * g.requests > g.parts) return std::nullopt;
  g.whole = kEven;
  return g;
}

std::optional<Geometry> items_by_length(Geometry g) {
  std::optional<Geometry> even = even_items(g);
  if (!even || g.requests > kMostByLength || g.length_sharers > 1) return std::nullopt;
  even->whole = kByLength;
  return even;
}

bool never_gains_from_splits(const Geometry& g, const Geometry& whole, std::int64_t saved) {
  Geometry lone = g;
  lone.requests = lone.rounds = 1;
  return estimate(whole) <= split_estimate(lone) + saved;
}

void set_workers(Geometry& g, int tiles, int workers) {
  int lanes = tiles < workers ? tiles : workers;
  while (lanes > 1 && (tiles % lanes != 0 || 10 * (workers / lanes) * lanes < 9 * workers)) --lanes;
  g.lanes = lanes > 0 ? lanes : 1;
  g.rounds = tiles > 0 ? (tiles + g.lanes - 1) / g.lanes : 1;
  g.parts = workers / g.lanes > 0 ? workers / g.lanes : 1;
}

}  // namespace flashlatent::schedule
