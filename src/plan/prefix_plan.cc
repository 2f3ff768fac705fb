#include "plan/prefix_plan.h"

#include <algorithm>
#include <limits>

#include "core/message.h"
#include "plan/host_plan.h"

namespace flashlatent::prefix {

namespace {

/// A split costs as much as so many blocks, for its queries and its result.
constexpr std::int64_t kSplitBlocks = 2;

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Units if none is longer than `most` blocks.
std::int64_t units_of(const Shape& shape, std::span<const Tile> tiles, std::int64_t most) {
  std::int64_t units = 0;
  for (const Tile& tile : tiles)
    units += shape.kv_heads * ceil_divide(tile.tokens / shape.block_tokens, most);
  return units;
}

/// The most blocks that a unit should have: the least that give so many waves of units as make the shortest
/// time together. Splits beyond a tile's first are never more than workers, see max_partial_rows().
std::int64_t longest_unit(const Shape& shape, std::span<const Tile> tiles) {
  std::int64_t longest = 1;
  for (const Tile& tile : tiles) longest = std::max<std::int64_t>(longest, tile.tokens / shape.block_tokens);
  const std::int64_t whole = units_of(shape, tiles, longest);
  std::int64_t best = longest;
  std::int64_t best_time = ceil_divide(whole, shape.workers) * (longest + kSplitBlocks);
  for (std::int64_t waves = 1; waves * shape.workers <= whole + shape.workers; ++waves) {
    std::int64_t low = 1, high = longest;  // the least length that fits into so many waves
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      const bool fits =
          units_of(shape, tiles, middle) <= std::min(waves * shape.workers, whole + shape.workers);
      (fits ? high : low) = fits ? middle : middle + 1;
    }
    if (units_of(shape, tiles, low) > waves * shape.workers) continue;
    const std::int64_t time = waves * (low + kSplitBlocks);
    if (time < best_time) {
      best = low;
      best_time = time;
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

void build_tiles(const Shape& shape, std::span<const Group> groups, void* memory) {
  const View plan = view(shape, memory);
  Header header{fingerprint(shape), static_cast<std::int32_t>(groups.size()), 0, 0, 0};
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
                                    static_cast<std::int32_t>(g)};
      std::copy_n(group.requests.begin() + static_cast<std::ptrdiff_t>(first), count,
                  plan.members + header.members);
      header.members += static_cast<std::int32_t>(count);
    }
  }
  const std::span<Tile> tiles(plan.tiles, header.tiles);
  const std::int64_t most = longest_unit(shape, tiles);
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
                   const std::int32_t* lengths, void* memory) {
  if (shape.requests == 0) return schedule::build_on_host(geometry, lengths, memory);
  void* prefixes = static_cast<std::uint8_t*>(memory) + offset(geometry);
  build_tiles(shape, groups, prefixes);
  build_shares(shape, lengths, prefixes);
  schedule::build_on_host(geometry, view(shape, prefixes).own_lengths, memory);
}

}  // namespace flashlatent::prefix
