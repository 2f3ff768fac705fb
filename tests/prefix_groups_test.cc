// Which requests share a prefix, how their work is cut, and what each request is told.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "group_list.h"
#include "plan/prefix_plan.h"

namespace flashlatent::prefix {
namespace {

/// Page tables written as lists.
struct Pages {
  std::vector<std::vector<std::int32_t>> rows;
  std::int32_t page_size = 16;
  std::vector<std::int32_t> lengths = {};  // full pages and one token more, if not given

  std::vector<GroupList> groups(Shape shape, bool always, std::int32_t query_tokens = 1) {
    std::size_t columns = 0;
    for (const auto& row : rows) columns = std::max(columns, row.size());
    std::vector<std::int32_t> table;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      table.insert(table.end(), rows[r].begin(), rows[r].end());
      table.resize((r + 1) * columns, 12345);  // garbage that all have in common, never to be read
      if (lengths.size() < rows.size()) {
        lengths.push_back(static_cast<std::int32_t>(rows[r].size()) * page_size);
      }
    }
    shape.requests = static_cast<std::int32_t>(rows.size());
    const PageTable pages{table.data(), static_cast<std::int64_t>(columns),
                          static_cast<std::int32_t>(columns), page_size, lengths.data()};
    return to_lists(find_groups(shape, pages, query_tokens, always));
  }
};

/// A row of `count` pages from `first` on, and then others.
std::vector<std::int32_t> row(std::int32_t first, int count, std::int32_t own, int own_count) {
  std::vector<std::int32_t> pages(count + own_count);
  std::iota(pages.begin(), pages.begin() + count, first);
  std::iota(pages.begin() + count, pages.end(), own);
  return pages;
}

Shape shape_of(std::int32_t requests) {
  return {.requests = requests,
          .request_rows = 4,
          .kv_heads = 2,
          .max_tokens = 1 << 20,
          .tile_rows = 64,
          .block_tokens = 64,
          .workers = 10,
          .read_cost = 100,
          .tile_cost = 150,
          .member_cost = 0,
          .call_cost = 0};
}

TEST(PrefixGroups, WhatCannotPayIsKnownFromShapes) {
  Shape shape = shape_of(20);  // 16 requests a tile
  shape.max_tokens = 1000;     // 960 in whole blocks
  const std::int64_t of_20 = 960 * (20 * 100 - 100 - 2 * 150), of_16 = 960 * (16 * 100 - 100 - 150);
  shape.call_cost = static_cast<std::int32_t>(of_20 - 1);
  EXPECT_TRUE(may_pay(shape));
  shape.call_cost = static_cast<std::int32_t>(of_20);
  EXPECT_FALSE(may_pay(shape));
  shape.requests = 17;  // the last one's tile would cost more than it saves
  shape.call_cost = static_cast<std::int32_t>(of_16 - 1);
  EXPECT_TRUE(may_pay(shape));
  shape.requests = 1;
  shape.call_cost = 0;
  EXPECT_FALSE(may_pay(shape));
}

/// No table of a shape that cannot pay gives groups, and the best one of any other does.
TEST(PrefixGroups, MayPayIsWhatTablesDo) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    Shape shape = shape_of(static_cast<std::int32_t>(2 + random() % 40));
    shape.member_cost = static_cast<std::int32_t>(random() % 20000);
    shape.call_cost = static_cast<std::int32_t>(random() % 2000000);
    const int blocks = 1 + static_cast<int>(random() % 20);
    shape.max_tokens = 64 * blocks + 16;
    Pages same{std::vector<std::vector<std::int32_t>>(shape.requests, row(1, 4 * blocks, 900, 1)), 16, {}};
    Pages mixed{{}, 16, {}};
    for (std::int32_t r = 0; r < shape.requests; ++r) {
      mixed.rows.push_back(row(static_cast<std::int32_t>(random() % 2) * 100, 4 * blocks, 1000 + r, 1));
    }
    const bool found = !same.groups(shape, false).empty();
    if (!may_pay(shape)) {
      EXPECT_FALSE(found);
      EXPECT_TRUE(mixed.groups(shape, false).empty());
    } else if (shape.requests % 16 == 0) {
      EXPECT_TRUE(found);
    }
  }
}

TEST(PrefixGroups, WholeBlocksOfCommonPages) {
  Pages pages{{row(0, 13, 100, 3), row(500, 9, 200, 3), row(0, 13, 300, 9), row(0, 13, 400, 1)}};
  const std::vector<GroupList> groups = pages.groups(shape_of(4), false);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].requests, (std::vector<std::int32_t>{0, 2, 3}));
  EXPECT_EQ(groups[0].tokens, 192);  // of 208
}

TEST(PrefixGroups, LastTokensStayOwn) {
  // Both requests end with the common pages: the query token's block is not shared.
  Pages pages{{row(0, 8, 0, 0), row(0, 8, 0, 0), row(0, 8, 0, 0)}};
  std::vector<GroupList> groups = pages.groups(shape_of(3), true);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].tokens, 64);
  pages = {{row(0, 8, 10, 1), row(0, 8, 20, 1), row(0, 8, 30, 1)}, 16, {129, 129, 129}};
  groups = pages.groups(shape_of(3), true);
  EXPECT_EQ(groups.at(0).tokens, 128);
  EXPECT_EQ(pages.groups(shape_of(3), true, 2).at(0).tokens, 64);
}

TEST(PrefixGroups, NothingToShare) {
  Pages pages{{row(0, 8, 100, 1), row(8, 8, 200, 1)}};
  EXPECT_TRUE(pages.groups(shape_of(2), true).empty());
  Pages short_one{{row(0, 3, 100, 9), row(0, 3, 200, 9)}};  // less than a block
  EXPECT_TRUE(short_one.groups(shape_of(2), true).empty());
  Pages empty{{row(0, 8, 0, 0), row(0, 8, 0, 0)}, 16, {0, -5}};
  EXPECT_TRUE(empty.groups(shape_of(2), true).empty());
  EXPECT_TRUE(Pages{}.groups(shape_of(0), true).empty());
}

TEST(PrefixGroups, PagesThatAreNoneEndAPrefix) {
  std::vector<std::int32_t> holed = row(0, 16, 100, 1);
  holed[9] = -1;
  Pages pages{{holed, holed, holed}};
  EXPECT_EQ(pages.groups(shape_of(3), true).at(0).tokens, 128);
}

TEST(PrefixGroups, OnlyWhereItPays) {
  // Alone 2 x 100 a token, together 100 + 150; three of them 300 against 250.
  Pages two{{row(0, 16, 100, 1), row(0, 16, 200, 1)}};
  EXPECT_TRUE(two.groups(shape_of(2), false).empty());
  EXPECT_EQ(two.groups(shape_of(2), true).size(), 1U);
  Pages three{{row(0, 16, 100, 1), row(0, 16, 200, 1), row(0, 16, 300, 1)}};
  EXPECT_EQ(three.groups(shape_of(3), false).size(), 1U);
  Shape dear = shape_of(3);
  dear.call_cost = 256 * 50;  // all that is saved
  EXPECT_TRUE(three.groups(dear, false).empty());
  dear.call_cost -= 1;
  EXPECT_EQ(three.groups(dear, false).size(), 1U);
}

TEST(PrefixGroups, NestedPrefixesThatSaveTheMost) {
  // Eight with a common block, of which four each have thirty more: two groups of four.
  Pages pages;
  for (int i = 0; i < 8; ++i) {
    std::vector<std::int32_t> pages_of = row(0, 4, 1000 + i % 2 * 500, 120);
    pages_of.push_back(5000 + i);
    pages.rows.push_back(pages_of);
  }
  std::vector<GroupList> groups = pages.groups(shape_of(8), false);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].requests, (std::vector<std::int32_t>{0, 2, 4, 6}));
  EXPECT_EQ(groups[1].requests, (std::vector<std::int32_t>{1, 3, 5, 7}));
  EXPECT_EQ(groups[0].tokens, 124 * 16);
  // With a common prefix of a hundred blocks and one more for each half: one group of all.
  pages = {};
  for (int i = 0; i < 8; ++i) pages.rows.push_back(row(0, 400, 1000 + i % 2 * 500, 5));
  groups = pages.groups(shape_of(8), false);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].requests.size(), 8U);
  EXPECT_EQ(groups[0].tokens, 6400);
}

/// The best choice by trying every set of nodes of the tree of prefixes.
std::int64_t best_gain(const Shape& shape, const std::vector<std::vector<std::int32_t>>& rows,
                       std::vector<int> members, std::size_t depth) {
  std::int64_t best = 0;
  // As one group at each depth up to what all have in common, or apart by the next page.
  while (true) {
    std::set<std::int32_t> next;
    for (int m : members) next.insert(depth < rows[m].size() - 1 ? rows[m][depth] : -1 - m);
    if (next.size() != 1 || *next.begin() < 0) {
      const std::int64_t tokens = static_cast<std::int64_t>(depth) * 64;
      const auto count = static_cast<std::int64_t>(members.size());
      const std::int64_t tiles = (count + 15) / 16;
      if (count > 1)
        best = count * tokens * shape.read_cost - tokens * (shape.read_cost + tiles * shape.tile_cost);
      std::int64_t apart = 0;
      for (std::int32_t page : next) {
        std::vector<int> inside;
        for (int m : members) {
          if ((depth < rows[m].size() - 1 ? rows[m][depth] : -1 - m) == page) inside.push_back(m);
        }
        if (inside.size() > 1) apart += best_gain(shape, rows, inside, depth + 1);
      }
      return std::max(best, apart);
    }
    ++depth;
  }
}

TEST(PrefixGroups, RandomTreesAgainstExhaustiveChoice) {
  std::mt19937 engine(3);
  for (int trial = 0; trial < 300; ++trial) {
    Pages pages{{}, 64};
    const int requests = 2 + static_cast<int>(engine() % 24);
    for (int r = 0; r < requests; ++r) {
      std::vector<std::int32_t> pages_of;
      const int count = static_cast<int>(engine() % 6);
      for (int p = 0; p < count; ++p) pages_of.push_back(p * 10 + static_cast<std::int32_t>(engine() % 2));
      pages_of.push_back(1000 + r);
      pages.rows.push_back(pages_of);
    }
    const Shape shape = shape_of(requests);
    std::vector<int> all(requests);
    std::iota(all.begin(), all.end(), 0);
    std::int64_t gain = 0;
    std::set<std::int32_t> seen;
    for (const GroupList& group : pages.groups(shape, false)) {
      const auto count = static_cast<std::int64_t>(group.requests.size());
      gain += count * group.tokens * shape.read_cost -
              group.tokens * (shape.read_cost + (count + 15) / 16 * shape.tile_cost);
      for (std::int32_t r : group.requests) {
        EXPECT_TRUE(seen.insert(r).second) << "request " << r << " is in two groups";
        const auto& first = pages.rows[group.requests[0]];
        EXPECT_TRUE(std::equal(first.begin(), first.begin() + group.tokens / 64, pages.rows[r].begin()));
        EXPECT_LT(group.tokens, static_cast<std::int32_t>(pages.rows[r].size()) * 64);
      }
    }
    EXPECT_EQ(gain, best_gain(shape, pages.rows, all, 0)) << "trial " << trial;
  }
}

/// A plan in poisoned memory.
struct Built {
  Built(const Shape& s, const std::vector<GroupList>& groups, const std::vector<std::int32_t>& lengths)
      : shape(s), memory(bytes(s) / 8 + 1, 0xAAAAAAAAAAAAAAAAULL), plan(view(s, memory.data())) {
    schedule::Geometry geometry;
    geometry.requests = s.requests;
    geometry.parts = s.workers;
    geometry.max_tokens = s.max_tokens;
    build_tiles(s, geometry, views_of(groups), lengths.data(), memory.data());
    build_shares(s, lengths.data(), memory.data());
  }
  Shape shape;
  std::vector<std::uint64_t> memory;
  View plan;
};

TEST(PrefixPlan, UnitsCoverEachPrefixOnceForEveryRow) {
  std::mt19937 engine(4);
  for (int trial = 0; trial < 200; ++trial) {
    Shape shape = shape_of(60);
    shape.workers = 1 + static_cast<std::int32_t>(engine() % 140);
    std::vector<GroupList> groups;
    std::vector<std::int32_t> lengths(60, 5000), group_of(60, -1);
    for (std::int32_t request = 0; request < 55;) {
      GroupList group{{}, static_cast<std::int32_t>(1 + engine() % 40) * 64};
      const auto count = static_cast<std::int32_t>(2 + engine() % 30);
      for (std::int32_t i = 0; i < count && request < 60; ++i, ++request) {
        group.requests.push_back(request);
        group_of[request] = static_cast<std::int32_t>(groups.size());
      }
      if (group.requests.size() > 1)
        groups.push_back(group);
      else
        group_of[request - 1] = -1;
      request += static_cast<std::int32_t>(engine() % 3);
    }
    const Built built(shape, groups, lengths);
    const View& plan = built.plan;
    std::vector<int> row_used(max_partial_rows(shape), 0);
    std::vector<std::vector<std::int32_t>> reached(60, std::vector<std::int32_t>(shape.kv_heads, 0));
    for (std::int32_t u = 0; u < plan.header->units; ++u) {
      const std::int32_t t = tile_of_unit(*plan.header, plan.tiles, u);
      const Unit unit = unit_of(shape, plan.tiles[t], u);
      ASSERT_LT(unit.block_begin, unit.block_end);
      const std::int32_t rows = unit.tile.members * shape.request_rows;
      ASSERT_LE(rows, shape.tile_rows);
      for (std::int32_t r = 0; r < rows; ++r) ++row_used.at(unit.row_begin + r);
      for (std::int32_t i = 0; i < unit.tile.members; ++i) {
        const std::int32_t request = plan.members[unit.tile.member_begin + i];
        // In the order of splits, without a gap.
        EXPECT_EQ(reached[request][unit.kv_head], unit.block_begin);
        reached[request][unit.kv_head] = unit.block_end;
        // Where the request looks for it.
        const Share& share = plan.shares[request];
        const std::int32_t split = (u - unit.tile.unit_begin) % share.splits;
        EXPECT_EQ(share.row_begin + (unit.kv_head * share.splits + split) * share.unit_rows,
                  unit.row_begin + i * shape.request_rows);
      }
    }
    EXPECT_TRUE(std::all_of(row_used.begin(), row_used.end(), [](int used) { return used <= 1; }));
    for (std::int32_t r = 0; r < 60; ++r) {
      const std::int32_t tokens = group_of[r] < 0 ? 0 : groups[group_of[r]].tokens;
      EXPECT_EQ(plan.shares[r].tokens, tokens);
      EXPECT_EQ(plan.own_lengths[r], lengths[r] - tokens);
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) EXPECT_EQ(reached[r][head], tokens / 64);
    }
  }
}

TEST(PrefixPlan, OneLargeGroupFillsTheDevice) {
  // 64 requests of 4 rows and 8 KV heads against 8,192 tokens: 2 tiles x 8 heads x 8 splits on 132 workers.
  Shape shape = shape_of(64);
  shape.kv_heads = 8;
  shape.tile_rows = 128;
  shape.workers = 132;
  GroupList group{{}, 8192};
  for (std::int32_t r = 0; r < 64; ++r) group.requests.push_back(r);
  const Built built(shape, {group}, std::vector<std::int32_t>(64, 8704));
  EXPECT_EQ(built.plan.header->tiles, 2);
  EXPECT_EQ(built.plan.header->units, 128);
  EXPECT_EQ(built.plan.own_lengths[5], 512);
}

TEST(PrefixPlan, LengthsThatAreOutOfRange) {
  Shape shape = shape_of(3);
  shape.max_tokens = 1000;
  const Built built(shape, {{{0, 1}, 128}}, {5000, 100, -7});
  EXPECT_EQ(built.plan.own_lengths[0], 1000 - 128);
  EXPECT_EQ(built.plan.own_lengths[1], 100);  // it does not see all of the prefix
  EXPECT_EQ(built.plan.own_lengths[2], 0);
}

TEST(PrefixPlan, WhoDoesNotSeeAllOfAPrefixHasAllTokensOfItsOwn) {
  Shape shape = shape_of(1);
  shape.max_tokens = 1000;
  const Share share{.tokens = 128, .splits = 1, .row_begin = 0, .unit_rows = 2};
  for (std::int32_t unseen : {0, 1, 3}) {
    shape.unseen = unseen;
    for (std::int32_t length = 0; length < 128 + unseen; ++length) {
      EXPECT_EQ(own_length(shape, length, share), length);
    }
    for (std::int32_t length = 128 + unseen; length <= 1000; ++length) {
      EXPECT_EQ(own_length(shape, length, share), length - 128);
    }
    EXPECT_EQ(own_length(shape, 1 << 30, share), 1000 - 128);
    EXPECT_EQ(own_length(shape, 777, Share{}), 777);
  }
}

}  // namespace
}  // namespace flashlatent::prefix
