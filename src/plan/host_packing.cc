#include "plan/host_packing.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <memory_resource>
#include <numeric>
#include <vector>

#include "plan/packing.h"

namespace flashlatent::schedule {

namespace {

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

}  // namespace

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

}  // namespace flashlatent::schedule
