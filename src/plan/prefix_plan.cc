#include "plan/prefix_plan.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/message.h"
#include "plan/host_plan.h"
#include "plan/scratch.h"

namespace flashlatent::prefix {

namespace {

/// Cost of a split in blocks: its queries and its result.
constexpr std::int64_t kSplitBlocks = 4;

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// The number of units if none is longer than `most` blocks.
std::int64_t units_of(const Shape& shape, std::span<const Tile> tiles, std::int64_t most) {
  std::int64_t units = 0;
  for (const Tile& tile : tiles)
    units += shape.kv_heads * ceil_divide(tile.tokens / shape.block_tokens, most);
  return units;
}

/// The longest unit and the time of all units, both in blocks.
struct Units {
  std::int64_t longest;
  std::int64_t time;
};

/// The least length of units that makes the whole waves of units shortest. Splits beyond a tile's first never
/// exceed the workers; see max_partial_rows().
Units units_for(const Shape& shape, std::span<const Tile> tiles, std::int64_t workers) {
  std::int64_t longest = 1;
  for (const Tile& tile : tiles) longest = std::max<std::int64_t>(longest, tile.tokens / shape.block_tokens);
  const std::int64_t whole = units_of(shape, tiles, longest);
  Units best{longest, ceil_divide(whole, workers) * (longest + kSplitBlocks)};
  for (std::int64_t waves = 1; waves * workers <= whole + workers; ++waves) {
    const std::int64_t most = std::min(waves * workers, whole + workers);
    std::int64_t low = 1, high = longest;  // searched: the least length that fits into `waves` waves
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      const bool fits = units_of(shape, tiles, middle) <= most;
      (fits ? high : low) = fits ? middle : middle + 1;
    }
    if (units_of(shape, tiles, low) > most) continue;
    const std::int64_t time = waves * (low + kSplitBlocks);
    if (time < best.time) best = {low, time};
  }
  return best;
}

/// Workers for prefixes, and parts for own tokens.
struct Division {
  std::int32_t workers;     // that compute units of prefixes
  std::int32_t used_parts;  // that have requests' own tokens
};

/// The work of requests' own tokens, on all workers.
struct OwnWork {
  std::int64_t blocks = 0, segments = 0;
};

OwnWork own_work(const Shape& shape, const schedule::Geometry& g, std::span<const Group> groups,
                 const std::int32_t* lengths) {
  std::pmr::vector<std::int32_t> own(lengths, lengths + g.requests, scratch());
  for (const Group& group : groups) {
    for (std::int32_t request : group.requests) own[request] -= group.tokens;
  }
  OwnWork work;
  const std::int64_t copies = std::int64_t{g.rounds} * g.lanes / shape.lanes_a_worker;
  for (std::int32_t length : own) work.blocks += copies * schedule::blocks_of(g, length);
  work.segments = copies * g.requests;
  return work;
}

/// Units are bound by products and move few bytes; own tokens are bound by bytes and have few products. So
/// both are faster side by side, and some of the workers can still use all of the memory's bandwidth.
Division divide(const Shape& shape, const schedule::Geometry& g, std::span<const Tile> tiles,
                std::span<const Group> groups, const std::int32_t* lengths) {
  Division best{shape.workers, g.parts};
  if (shape.own_block_cost == 0 || groups.empty()) return best;
  const std::int32_t workers_a_part = g.lanes / shape.lanes_a_worker;
  const OwnWork own = own_work(shape, g, groups, lengths);
  const std::int64_t alone = own.blocks * shape.own_block_cost + own.segments * shape.own_split_cost;
  const std::int64_t by_memory = own.blocks * g.cost.per_block / shape.workers;
  auto prefix_time = [&](std::int32_t workers) {
    return units_for(shape, tiles, workers).time * shape.unit_block_cost;
  };
  auto own_time = [&](std::int32_t parts) {
    return std::max(alone / (std::int64_t{parts} * workers_a_part), by_memory);
  };
  std::int64_t best_time = prefix_time(shape.workers) + own_time(g.parts);
  for (std::int32_t parts = g.parts; parts > 0; --parts) {
    const std::int32_t workers = shape.workers - parts * workers_a_part;
    if (workers < 1) continue;
    const std::int64_t time = std::max(prefix_time(workers), own_time(parts));
    if (time < best_time) {
      best_time = time;
      best = {workers, parts};
    }
  }
  return best;
}

}  // namespace

Status validate(const Shape& s) {
  if (s.requests == 0) return {};
  if (s.requests < 0 || s.request_rows < 1 || s.kv_heads < 1 || s.tile_rows < 2 * s.request_rows ||
      s.block_tokens < 1 || s.workers < 1 || s.read_cost < 1 || s.tile_cost < 0 || s.member_cost < 0 ||
      s.call_cost < 0) {
    return {StatusCode::kInternal, "a kernel's shape for shared prefixes is out of range"};
  }
  if (max_partial_rows(s) > std::numeric_limits<std::int32_t>::max()) {
    return unsupported("batch is ", s.requests, " with ", s.request_rows * s.kv_heads,
                       " query rows a request; fewer are accepted where prefixes are shared");
  }
  return {};
}

void build_tiles(const Shape& shape, const schedule::Geometry& geometry, std::span<const Group> groups,
                 const std::int32_t* lengths, void* memory) {
  const View plan = view(shape, memory);
  Header header{.fingerprint = fingerprint(shape),
                .groups = static_cast<std::int32_t>(groups.size()),
                .tiles = 0,
                .units = 0,
                .members = 0,
                .workers = 0,
                .used_parts = 0};
  const auto each = static_cast<std::size_t>(tile_requests(shape));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    for (std::size_t first = 0; first < group.requests.size(); first += each) {
      const std::size_t count = std::min(each, group.requests.size() - first);
      plan.tiles[header.tiles++] = {header.members,
                                    static_cast<std::int32_t>(count),
                                    group.tokens,
                                    1,
                                    0,
                                    0,
                                    static_cast<std::int32_t>(g),
                                    group.requests[first]};
      std::copy_n(group.requests.begin() + static_cast<std::ptrdiff_t>(first), count,
                  plan.members + header.members);
      header.members += static_cast<std::int32_t>(count);
    }
  }
  const std::span<Tile> tiles(plan.tiles, header.tiles);
  const Division division = divide(shape, geometry, tiles, groups, lengths);
  header.workers = division.workers;
  header.used_parts = division.used_parts;
  const std::int64_t most = units_for(shape, tiles, division.workers).longest;
  std::int32_t rows = 0;
  for (Tile& tile : tiles) {
    tile.splits = static_cast<std::int32_t>(ceil_divide(tile.tokens / shape.block_tokens, most));
    tile.unit_begin = header.units;
    tile.row_begin = rows;
    const std::int32_t units = tile.splits * shape.kv_heads;
    header.units += units;
    rows += units * tile.members * shape.request_rows;
  }
  *plan.header = header;
}

void build_shares(const Shape& shape, const std::int32_t* lengths, void* memory) {
  const View plan = view(shape, memory);
  std::fill_n(plan.shares, shape.requests, Share{});
  for (std::int32_t t = 0; t < plan.header->tiles; ++t) {
    const Tile& tile = plan.tiles[t];
    for (std::int32_t i = 0; i < tile.members; ++i) {
      plan.shares[plan.members[tile.member_begin + i]] = share_of(shape, tile, i);
    }
  }
  for (std::int32_t r = 0; r < shape.requests; ++r) {
    plan.own_lengths[r] = own_length(shape, lengths[r], plan.shares[r]);
  }
}

void build_on_host(const schedule::Geometry& geometry, const Shape& shape, std::span<const Group> groups,
                   const std::int32_t* lengths, void* memory, bool packs) {
  if (shape.requests == 0) return schedule::build_on_host(geometry, lengths, memory, {.packs = packs});
  void* prefixes = static_cast<std::uint8_t*>(memory) + offset(geometry);
  build_tiles(shape, geometry, groups, lengths, prefixes);
  build_shares(shape, lengths, prefixes);
  const View plan = view(shape, prefixes);
  schedule::build_on_host(geometry, plan.own_lengths, memory,
                          {.used_parts = plan.header->used_parts, .packs = packs});
}

}  // namespace flashlatent::prefix
