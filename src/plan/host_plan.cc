#include "plan/host_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <memory_resource>
#include <numeric>
#include <vector>

#include "core/message.h"
#include "plan/block_cost.h"
#include "plan/even_shares.h"
#include "plan/line_shares.h"
#include "plan/packing.h"
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

using Numbers = std::pmr::vector<std::int32_t>;

/// The items of a stretch as pack_parts() wants them, the most expensive first. `number` is the caller's name
/// for an item.
class Items {
 public:
  /// `most`: how many items will be added.
  Items(std::size_t most, std::pmr::memory_resource* memory)
      : numbers_(memory), costs_(memory), order_(memory), taken_(memory) {
    for (Numbers* numbers : {&numbers_, &costs_, &order_}) numbers->reserve(most);
    taken_.reserve(most);
  }

  void add(std::int32_t number, std::int32_t cost) {
    numbers_.push_back(number);
    costs_.push_back(cost);
  }
  /// Adds the item that may be taken only when no other is left.
  void add_last(std::int32_t number, std::int32_t cost) {
    add(number, cost);
    has_last_ = true;
  }
  void put_back() {
    taken_.assign(costs_.size(), false);
    order_.clear();
  }

  Unpacked longest() const { return longest_within(std::numeric_limits<std::int32_t>::max()); }
  Unpacked longest_within(std::int32_t cost) const {
    for (std::ptrdiff_t i = 0; i < ready(); ++i) {
      if (!taken_[i] && costs_[i] <= cost) return item(i);
    }
    return kNone;
  }
  Unpacked shortest() const {
    for (std::ptrdiff_t i = ready() - 1; i >= 0; --i) {
      if (!taken_[i]) return item(i);
    }
    return kNone;
  }
  void take(Unpacked item) {
    taken_[item.place] = true;
    order_.push_back(numbers_[item.place]);
  }

  /// The numbers of the items, in the order in which they were taken.
  const Numbers& order() const { return order_; }

 private:
  static constexpr Unpacked kNone{-1, -1};
  Unpacked item(std::ptrdiff_t place) const { return {static_cast<std::int32_t>(place), costs_[place]}; }
  std::ptrdiff_t ready() const {
    const bool last_waits = has_last_ && std::ssize(order_) + 1 < std::ssize(costs_);
    return std::ssize(costs_) - last_waits;
  }

  Numbers numbers_, costs_, order_;
  std::pmr::vector<bool> taken_;
  bool has_last_ = false;
};

/// The items of one round in the order in which they are dealt to stretches. A place is an index into this
/// order.
struct DealtLine {
  DealtLine(const Geometry& g, const std::int64_t* cost_prefix, std::pmr::memory_resource* memory)
      : stretches(stretches_of(g)),
        requests(g.requests, memory),
        ranks(g.requests, memory),
        costs(memory),
        begins(g.requests + 1, memory) {
    auto cost = [&](std::int32_t r) {
      return static_cast<std::int32_t>(cost_prefix[r + 1] - cost_prefix[r]);
    };
    Numbers by_rank(g.requests, memory);
    std::iota(by_rank.begin(), by_rank.end(), 0);
    std::sort(by_rank.begin(), by_rank.end(),
              [&](std::int32_t a, std::int32_t b) { return cost(a) != cost(b) ? cost(a) > cost(b) : a < b; });
    for (std::int32_t rank = 0; rank < g.requests; ++rank) {
      const std::int32_t place = dealt_place(g.requests, stretches.count, rank);
      requests[place] = by_rank[rank];
      ranks[place] = rank;
    }
    costs.reserve(g.requests);
    for (std::int32_t r : requests) costs.push_back(cost(r));
    std::partial_sum(costs.begin(), costs.end(), begins.begin() + 1);
  }

  /// Where stretch number `index` begins.
  PackedPoint stretch_begin(const Geometry& g, std::int32_t index) const {
    if (index == stretches.count) return {g.requests, 0};
    const auto offset = static_cast<std::int32_t>(part_offset(begins.back(), stretches.count, index));
    const auto place = std::upper_bound(begins.begin() + 1, begins.end(), offset) - begins.begin() - 1;
    if (place == g.requests) return {g.requests, 0};
    return schedule::stretch_begin(g, stretches, offset, static_cast<std::int32_t>(place), begins[place],
                                   costs[place]);
  }

  Stretches stretches;
  Numbers requests, ranks, costs;  // by place
  Numbers begins;                  // by place: cost of all items before it
};

/// Packs one stretch. Sets `cuts` of its parts, as places in the order of takes, and appends its requests to
/// `order`. Uses the least bound into which all items fit; false if there is none.
bool pack_stretch(const Geometry& g, const DealtLine& line, std::int64_t round_cost, const Stretch& stretch,
                  std::pmr::memory_resource* memory, std::pmr::vector<PackedPoint>& cuts, Numbers& order) {
  Items items(stretch.items(), memory);
  Numbers places(stretch.items(), memory);
  std::iota(places.begin(), places.end(), stretch.first_item());
  if (stretch.piece > 0) places.pop_back();
  std::sort(places.begin(), places.end(),
            [&](std::int32_t a, std::int32_t b) { return line.ranks[a] < line.ranks[b]; });
  for (std::int32_t place : places) items.add(line.requests[place], line.costs[place]);
  if (stretch.piece > 0) items.add_last(line.requests[stretch.end.place], stretch.piece);
  auto cut = [&](std::int32_t k, std::int32_t item, std::int32_t block) {
    cuts[k] = packed_point(stretch, item, block);
  };
  for (std::int32_t i = 0; i < kPackings; ++i) {
    items.put_back();
    if (!pack_parts(g, packing_bound(g, round_cost, i), stretch, items, cut)) continue;
    order.insert(order.end(), items.order().begin(), items.order().end());
    return true;
  }
  return false;
}

/// The number of partial results that these cuts make.
std::int32_t partials_of(const Geometry& g, const Cut* cuts) {
  std::int32_t partials = 0;
  for (std::int32_t k = 1; k <= g.parts; ++k) {
    partials += opens_segment(cuts[k], cuts[k - 1]) + opens_merge(cuts[k], cuts[k - 1]);
  }
  return partials;
}

/// Replaces the cuts and successors by packed ones, if packing leaves fewer partial results than the present
/// cuts. Places of partial results are not set.
void pack_items(const Geometry& g, PlanView plan) {
  const std::int64_t round_cost = plan.cost_prefix[g.requests];
  if (!may_pack(g, round_cost)) return;
  // A dozen numbers for each item and part, so that the heap is never used.
  alignas(std::max_align_t) std::array<std::byte, 64 * (kMostPacked + kMostPackedParts)> room;
  std::pmr::monotonic_buffer_resource memory(room.data(), room.size());
  const DealtLine line(g, plan.cost_prefix, &memory);
  std::pmr::vector<PackedPoint> points(g.parts + 1, PackedPoint{g.requests, 0}, &memory);
  Numbers order(&memory);  // requests, in the order of the packed line
  order.reserve(g.requests);
  for (std::int32_t i = 0; i < line.stretches.count; ++i) {
    const PackedPoint begin = line.stretch_begin(g, i), end = line.stretch_begin(g, i + 1);
    const std::int32_t begin_cost = begin.block > 0 ? line.costs[begin.place] : 0;
    const Stretch stretch = stretch_of(g, line.stretches, i, begin, end, begin_cost);
    if (!pack_stretch(g, line, round_cost, stretch, &memory, points, order)) return;
  }
  std::pmr::vector<Cut> cuts(&memory);
  cuts.reserve(points.size());
  for (const PackedPoint& point : points) cuts.push_back(packed_cut(g, point, order.data()));
  if (partials_of(g, cuts.data()) >= partials_of(g, plan.cuts)) return;
  std::copy(cuts.begin(), cuts.end(), plan.cuts);
  for (std::int32_t i = 0; i < g.requests; ++i)
    plan.successors[order[i]] = packed_successor(g, i, order.data());
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

/// Is the partition one of kPartitions, and do the other fields suit it?
bool partition_fits(const Geometry& g) {
  const bool has_fixed = g.partition == Partition::kFixedSplits;
  if (name_of(g.partition) == nullptr || has_fixed != (g.fixed_split > 0)) return false;
  if (g.partition == Partition::kWhole) return std::int64_t{g.requests} * g.rounds == g.parts;
  if (g.partition == Partition::kTurns)
    return g.parts <= std::max<std::int64_t>(std::int64_t{g.requests} * g.rounds, 1);
  if (!is_shares(g.partition)) return true;
  if (g.rounds != 1 || g.requests < 1 || g.requests > g.parts) return false;
  if (combines_shares(g.partition) && g.parts < 2 * g.requests) return false;
  return g.partition != Partition::kSharesByLength || (g.requests <= kMostByLength && g.length_sharers == 1);
}

}  // namespace

Status validate(const Geometry& g) {
  if (g.requests < 0 || g.parts < 1 || g.lanes < 1 || g.rounds < 1 || g.block_tokens < 1 ||
      g.max_tokens < 0 || g.fixed_split < 0 || g.length_sharers < 1 || g.lists < 1 || g.lists > 2 ||
      g.cost.per_block < 1 || g.cost.per_split < 0 || g.cost.per_merge < 0 || g.cost.per_block_alone < 0 ||
      g.cost.per_block_near < 0 || g.team < 1 || !partition_fits(g)) {
    return {StatusCode::kInternal, "a kernel's schedule geometry is out of range"};
  }
  // In floating point, because the integers might overflow.
  const double items = static_cast<double>(g.requests) * g.rounds;
  const double cost = items * static_cast<double>(item_cost(g, max_blocks(g)));
  const double partials =
      g.partition == Partition::kFixedSplits ? items * fixed_splits_of(g, max_blocks(g)) : 2.0 * g.parts;
  if (cost >= 0x1p62 || partials * g.lanes * g.tile_rows >= 0x1p31) {
    return unsupported("a plan of ", g.requests, " requests x ", g.rounds, " rounds x ", max_blocks(g),
                       " blocks overflows; fewer requests, query rows or max_pages are accepted");
  }
  return {};
}

namespace {

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

namespace {

/// The time if each item is cut into equal shares.
std::int64_t split_estimate(const Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  return g.cost.per_call + items * item_cost(g, max_blocks(g)) / g.parts + g.cost.per_block +
         g.cost.per_split + g.cost.per_merge;
}

std::int64_t over(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

/// The time if all items stay whole.
std::int64_t whole_estimate(const Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  const std::int64_t item = g.cost.per_split + std::int64_t{max_blocks(g)} * whole_block_cost(g);
  return g.cost.per_call + over(items, g.parts) * item;
}

/// For partitions by shapes: the time of the CTA with the longest share.
std::int64_t share_estimate(const Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  const std::int64_t blocks = over(over(max_blocks(g), g.parts / items), g.team);
  return g.cost.per_call + g.cost.per_split + blocks * g.cost.per_block * g.team +
         (g.parts > items ? g.cost.per_merge : 0);
}

}  // namespace

namespace {

std::int64_t unbounded_estimate(const Geometry& g) {
  if (g.partition == Partition::kFixedSplits)
    return std::int64_t{g.rounds} * g.lanes * item_cost(g, g.fixed_split);
  if (g.requests == 0) return g.cost.per_call;
  if (is_shares(g.partition) || (g.partition == Partition::kWhole && g.team > 1)) return share_estimate(g);
  if (g.partition == Partition::kTurns) return whole_estimate(g);
  return std::min(whole_estimate(g), split_estimate(g));
}

}  // namespace

std::int64_t estimate(const Geometry& g) {
  const std::int64_t least = g.requests > 0 ? 1 : 0;  // per_call may be negative
  return std::max(unbounded_estimate(g), least);
}

bool stays_whole(const Geometry& g) {
  return g.partition == Partition::kWhole || g.partition == Partition::kTurns ||
         whole_estimate(g) <= split_estimate(g);
}

std::optional<Geometry> whole_items(Geometry g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  if (items < 1 || items > g.parts || g.partition == Partition::kFixedSplits) return std::nullopt;
  g.parts = static_cast<std::int32_t>(items);
  g.partition = Partition::kWhole;
  return g;
}

Geometry turns(Geometry g) {
  g.parts =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(std::int64_t{g.requests} * g.rounds, 1, g.parts));
  g.partition = Partition::kTurns;
  return g;
}

std::optional<Geometry> even_items(Geometry g) {
  if (g.partition != Partition::kLine || g.rounds != 1 || g.requests < 1) return std::nullopt;
  const std::int64_t most = std::int64_t{g.requests} * max_blocks(g);  // shares of one block each
  g.parts = static_cast<std::int32_t>(std::min<std::int64_t>(g.parts, most));
  if (2LL * g.requests > g.parts) return std::nullopt;
  g.partition = Partition::kEvenShares;
  return g;
}

std::optional<Geometry> items_by_length(Geometry g) {
  std::optional<Geometry> even = even_items(g);
  if (!even || g.requests > kMostByLength || g.length_sharers > 1) return std::nullopt;
  even->partition = Partition::kSharesByLength;
  return even;
}

Geometry with_shares_merged_in(Geometry g, std::int32_t per_merge) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  if (items == 0 || g.partition != Partition::kLine || 2 * items > g.parts) return g;
  Geometry shares = g;
  shares.cost.per_merge = per_merge;
  g.cost.per_call += static_cast<std::int32_t>(estimate(shares) - estimate(g));
  return g;
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
